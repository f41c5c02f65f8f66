"""UpdateAds calls to a real server, the updates that they send, and a load that must see them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grace.proto.retrieval_pb2 import AdWeight, Ids, UpdateAdsRequest, UpdateAdsResponse
from support.retrieve_calls import Caller
from support.server_process import ServerProcess

METHOD = "/grace.v1.Admin/UpdateAds"
Levels = Mapping[str, Iterable[int]]


def update(
    sequence: int,
    *,
    full: bool = False,
    stop: Levels | None = None,
    resume: Levels | None = None,
    weights: Mapping[int, float] | None = None,
    unweight: Sequence[int] = (),
    **more: Any,
) -> UpdateAdsRequest:
    return UpdateAdsRequest(
        sequence=sequence,
        kind=UpdateAdsRequest.KIND_FULL if full else UpdateAdsRequest.KIND_DELTA,
        stop={level: Ids(ids=list(ids)) for level, ids in (stop or {}).items()},
        resume={level: Ids(ids=list(ids)) for level, ids in (resume or {}).items()},
        weights=[AdWeight(ad_id=each, weight=weight) for each, weight in (weights or {}).items()],
        unweight=unweight,
        **more,
    )


def assert_only_missing(
    after: Sequence[int], before: Sequence[int], stopped: Collection[int]
) -> None:
    """After stops, a reply has none of the ads, and the others in their order.

    Others may come in addition: in mode `exact`, the next SID replaces one without live ads.
    """
    assert not set(after) & set(stopped)
    assert [ad for ad in after if ad in set(before)] == [ad for ad in before if ad not in stopped]


class Updater(Caller):
    """Sends updates."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.admin, method=METHOD)

    def apply(self, sequence: int, **what: Any) -> UpdateAdsResponse:
        """Send an update that the server must take."""
        outcome = self.call(update(sequence, **what))
        assert outcome.ok, f"{outcome.code.name}: {outcome.text}"
        return UpdateAdsResponse.FromString(outcome.reply)
