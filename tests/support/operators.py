"""An operator's calls to a server's Admin service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grace.proto.retrieval_pb2 import (
    GetStatusRequest,
    GetStatusResponse,
    LoadRequest,
    LoadResponse,
    RollbackRequest,
    RollbackResponse,
    UnpinRequest,
    UnpinResponse,
)
from grace.proto.retrieval_pb2_grpc import AdminStub
from support.retrieve_calls import Outcome
from support.server_process import PATIENCE_SECONDS, ServerProcess


class Operator:
    def __init__(self, stub: Any) -> None:
        self.stub = stub

    def status(self) -> GetStatusResponse:
        reply: GetStatusResponse = self.stub.GetStatus(GetStatusRequest(), timeout=PATIENCE_SECONDS)
        return reply

    def load(self, version: int = 0, checkpoint: object = "") -> LoadResponse:
        request = LoadRequest(snapshot_version=version, checkpoint=str(checkpoint))
        reply: LoadResponse = self.stub.Load(request, timeout=PATIENCE_SECONDS)
        return reply

    def roll_back(self, version: int = 0) -> RollbackResponse:
        request = RollbackRequest(snapshot_version=version)
        reply: RollbackResponse = self.stub.Rollback(request, timeout=PATIENCE_SECONDS)
        return reply

    def unpin(self) -> UnpinResponse:
        reply: UnpinResponse = self.stub.Unpin(UnpinRequest(), timeout=PATIENCE_SECONDS)
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
