"""A reply as frozen Python values. Its ads, up to 10,000, stay in arrays until they are read."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from grace.configs.arrays import AnyArray, Float32, Int64, UInt32
from grace.proto import retrieval_pb2 as wire

if TYPE_CHECKING:
    from grace.index.tables.ids import DataIds


class Ad(NamedTuple):
    """A returned ad. `score` is the log-probability of its SID; `sid` is None unless asked for.

    `item_id` is its id in the client's data folder; None without one, or if the id map lacks it.
    """

    ad_id: int
    score: float
    sid: tuple[int, ...] | None = None
    item_id: str | None = None

    @property
    def probability(self) -> float:
        return math.exp(self.score)


_new_ad = cast(Callable[[tuple[int, float, Any, Any]], Ad], partial(tuple.__new__, Ad))
"""Makes an `Ad` without running Python code, which matters for 10,000 ads."""


@dataclass(frozen=True, slots=True)
class Sids:
    """The SIDs that the model generated, best first; some may have no ad in the result."""

    tokens: UInt32  # [sids, length]
    scores: Float32  # [sids]: their log-probabilities
    of_ads: UInt32  # [ads]: for each ad of the result, the SID that it comes from

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ads(Sequence[Ad]):
    """The ads of a result, best first: a sequence that makes each `Ad` when you read it.

    NumPy users read `ad_ids` and `scores`.
    """

    ad_ids: Int64
    scores: Float32
    _sids: Sids | None
    _ids: "DataIds | None"

    def __len__(self) -> int:
        return len(self.ad_ids)

    @overload
    def __getitem__(self, place: int) -> Ad: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Ad, ...]: ...
    def __getitem__(self, place: int | slice) -> Ad | tuple[Ad, ...]:
        if isinstance(place, slice):
            return tuple(self._made(place))
        (ad,) = self._made([place])
        return ad

    def __iter__(self) -> Iterator[Ad]:
        return self._made(slice(None))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self)} ads: {shown}{', ...' if len(self) > 3 else ''}>"

    def _made(self, places: slice | list[int]) -> Iterator[Ad]:
        numbers = self.ad_ids[places].tolist()
        sids: Iterable[tuple[int, ...] | None] = repeat(None)
        if self._sids is not None:
            sids = map(tuple, self._sids.tokens[self._sids.of_ads[places]].tolist())
        items = repeat(None) if self._ids is None else self._ids.names("ad", numbers)
        return map(_new_ad, zip(numbers, self.scores[places].tolist(), sids, items, strict=False))


@dataclass(frozen=True, slots=True)
class RetrieveResult:
    """The answer to a request: `for ad in result.ads[:3]: print(ad.ad_id, ad.probability)`."""

    ads: Ads  # best first
    sids: Sids | None  # None, unless the request had include_sids
    counts: wire.Counts  # the number of ads after each step
    snapshot_version: int
    checkpoint: str
    profile: str
    request_id: str
    # microseconds on the server: all waiting, and each stage for the whole batch
    timings: wire.Timings
    # names in the request that neither catalogue nor model knows, such as misspelt
    ignored_names: tuple[str, ...]
    truncated: bool  # max_ads cut the list
    degraded: bool  # the server was overloaded and used a smaller beam profile: `profile`
    attempts: int  # the number of attempts
    # items of the request's sequences that have no SID; their events were left out
    unknown_items: tuple[str, ...]
    # the reply itself, a grace.v1.RetrieveResponse
    message: wire.RetrieveResponse = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        reply: wire.RetrieveResponse,
        attempts: int = 1,
        ids: "DataIds | None" = None,
        unknown_items: Iterable[str] = (),
    ) -> "RetrieveResult":
        sids = _sids(reply) if reply.HasField("sids") else None
        ad_ids, scores = _frozen(reply.ad_ids, np.int64), _frozen(reply.scores, np.float32)
        return cls(
            ads=Ads(ad_ids, scores, sids, ids),
            sids=sids,
            counts=reply.counts,
            snapshot_version=reply.snapshot_version,
            checkpoint=reply.checkpoint,
            profile=reply.profile,
            request_id=reply.request_id,
            timings=reply.timings,
            ignored_names=tuple(reply.ignored_names),
            truncated=reply.truncated,
            degraded=reply.degraded,
            attempts=attempts,
            unknown_items=tuple(dict.fromkeys(unknown_items)),
            message=reply,
        )


def _sids(reply: wire.RetrieveResponse) -> Sids:
    scores = _frozen(reply.sids.scores, np.float32)
    tokens = _frozen(reply.sids.tokens, np.uint32).reshape(len(scores), reply.sids.length)
    return Sids(tokens, scores, _frozen(reply.sids.sid_of_ad, np.uint32))


def _frozen(values: Sequence[float], kind: type[np.generic]) -> AnyArray:
    array = np.array(values, kind)
    array.flags.writeable = False
    return array
