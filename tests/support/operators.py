"""An operator's calls to a server's Admin service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grace.proto import retrieval_pb2 as wire
from grace.proto.retrieval_pb2_grpc import AdminStub
from support.retrieve_calls import Outcome
from support.server_process import PATIENCE_SECONDS, ServerProcess


class Operator:
    def __init__(self, stub: Any) -> None:
        self.stub = stub

    def status(self) -> wire.GetStatusResponse:
        reply: wire.GetStatusResponse = self.stub.GetStatus(
            wire.GetStatusRequest(), timeout=PATIENCE_SECONDS
        )
        return reply

    def load(self, version: int = 0, checkpoint: object = "") -> wire.LoadResponse:
        request = wire.LoadRequest(snapshot_version=version, checkpoint=str(checkpoint))
        reply: wire.LoadResponse = self.stub.Load(request, timeout=PATIENCE_SECONDS)
        return reply

    def roll_back(self, version: int = 0) -> wire.RollbackResponse:
        request = wire.RollbackRequest(snapshot_version=version)
        reply: wire.RollbackResponse = self.stub.Rollback(request, timeout=PATIENCE_SECONDS)
        return reply

    def unpin(self) -> wire.UnpinResponse:
        reply: wire.UnpinResponse = self.stub.Unpin(wire.UnpinRequest(), timeout=PATIENCE_SECONDS)
        return reply


@contextmanager
def operator_of(server: ServerProcess) -> Iterator[Operator]:
    with grpc.insecure_channel(server.admin) as channel:
        yield Operator(AdminStub(channel))  # type: ignore[no-untyped-call]


@contextmanager
def refused() -> Iterator[list[Outcome]]:
    """Expect a call to fail; the list then has how."""
    found: list[Outcome] = []
    with pytest.raises(grpc.RpcError) as caught:
        yield found
    error: Any = caught.value
    trailers = {key: str(value) for key, value in error.trailing_metadata()}
    found.append(Outcome(error.code(), error.details(), trailers, b""))
