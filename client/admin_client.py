"""A client of a server's Admin service, for operators' programs.

with AdminClient("127.0.0.1:50052") as client:
    client.load(timeout=600.0)
"""

from collections.abc import Iterator
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from grace.client.connection import FailedCall, Tls, call_error, channel
from grace.client.target import target_of
from grace.configs.errors import CallError
from grace.proto import retrieval_pb2 as wire

ELSEWHERE = (
    "Admin; it may be the address for clients: use the one that the section admin listens on"
)
ATTEMPTS = 10
"""The most times that `update_next` sends an update."""

_Reply = TypeVar("_Reply", bound=Message)


class AdminClient:
    """Each call raises a CallError if it fails. `timeout` is in seconds."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        """Connect at the first call to `address`, HOST:PORT; without `tls`, in plaintext."""
        self.address = target_of(address).shown
        self._tls = tls
        self._channel = channel(address, tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def status(self, timeout: float) -> wire.GetStatusResponse:
        return self._call("GetStatus", wire.GetStatusRequest(), wire.GetStatusResponse, timeout)

    def load(self, version: int = 0, checkpoint: str = "", *, timeout: float) -> wire.LoadResponse:
        """Load a version and a checkpoint, and return once the server serves them.

        Version 0 is the one that CURRENT names, and checkpoint "" the one that is served now. The
        server finishes a load even if its caller gives up.
        """
        request = wire.LoadRequest(snapshot_version=version, checkpoint=checkpoint)
        return self._call("Load", request, wire.LoadResponse, timeout)

    def roll_back(self, version: int = 0, *, timeout: float) -> wire.RollbackResponse:
        """Serve an older version and pin it. Version 0 is the newest below the served one."""
        request = wire.RollbackRequest(snapshot_version=version)
        return self._call("Rollback", request, wire.RollbackResponse, timeout)

    def unpin(self, timeout: float) -> wire.UnpinResponse:
        return self._call("Unpin", wire.UnpinRequest(), wire.UnpinResponse, timeout)

    def update_ads(self, request: wire.UpdateAdsRequest, timeout: float) -> wire.UpdateAdsResponse:
        return self._call("UpdateAds", request, wire.UpdateAdsResponse, timeout)

    def update_next(self, request: wire.UpdateAdsRequest, timeout: float) -> wire.UpdateAdsResponse:
        """Send a DELTA with the next free number, also if other senders take numbers meanwhile."""
        request.kind = request.KIND_DELTA
        for _ in range(ATTEMPTS):
            found = self.status(timeout)
            last, of_snapshot = found.updates.sequence, found.snapshot.updates_watermark
            if last < of_snapshot and (request.put or request.remove):
                fault = f"the server has updates up to {last}, and its snapshot those up to"
                remedy = "send a FULL update with all stops first (docs/operations.md)"
                raise CallError("FAILED_PRECONDITION", "", f"{fault} {of_snapshot}; {remedy}")
            request.sequence = last + 1
            reply = self.update_ads(request, timeout)
            if reply.applied:
                return reply
        text = f"sequence: other senders took the number {ATTEMPTS} times; try again, or let one of"
        raise CallError("ABORTED", "", f"{text} them send this update")

    def confirm_updates(self, sequence: int, timeout: float) -> wire.ConfirmUpdatesResponse:
        request = wire.ConfirmUpdatesRequest(sequence=sequence)
        return self._call("ConfirmUpdates", request, wire.ConfirmUpdatesResponse, timeout)

    def stops(self, level: str, timeout: float) -> Iterator[int]:
        """Yield the ids that are stopped at a level, ascending. Each page has the timeout."""
        request = wire.GetStopsRequest(level=level)
        while page := self._call("GetStops", request, wire.GetStopsResponse, timeout).ids:
            yield from page
            request.after = page[-1]

    def explain(self, request: wire.ExplainRequest, timeout: float) -> wire.ExplainResponse:
        return self._call("Explain", request, wire.ExplainResponse, timeout)

    def _call(self, name: str, request: Message, kind: type[_Reply], timeout: float) -> _Reply:
        method = self._channel.unary_unary(
            f"/grace.v1.Admin/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=kind.FromString,
        )
        try:
            reply: _Reply = method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise call_error(self.address, self._tls, FailedCall.of(error), ELSEWHERE) from None
        return reply
