"""The calls of Admin that change the served snapshot and checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from grace.proto.retrieval_pb2 import (
    LoadRequest,
    LoadResponse,
    RollbackRequest,
    RollbackResponse,
    UnpinRequest,
    UnpinResponse,
)
from grace.server.errors import invalid_field
from grace.server.reload.reloads import Reloads
from grace.server.transport.listener.grpc_listener import Method
from grace.server.transport.operator_calls import method_of


class LoadCalls:
    """Load, Rollback and Unpin. Each returns once the server serves what the reply names."""

    def __init__(self, reloads: Reloads) -> None:
        self._reloads = reloads

    @property
    def methods(self) -> Mapping[str, Method]:
        return {
            "Load": method_of(LoadRequest, self._load),
            "Rollback": method_of(RollbackRequest, self._roll_back),
            "Unpin": method_of(UnpinRequest, self._unpin),
        }

    async def _load(self, request: LoadRequest) -> LoadResponse:
        checkpoint = _folder(request.checkpoint)
        served = await self._reloads.load(request.snapshot_version, checkpoint)
        return LoadResponse(
            snapshot_version=served.version, checkpoint=served.checkpoint, changed=served.changed
        )

    async def _roll_back(self, request: RollbackRequest) -> RollbackResponse:
        served = await self._reloads.roll_back(request.snapshot_version)
        return RollbackResponse(
            snapshot_version=served.version, previous_version=served.previous_version
        )

    async def _unpin(self, _: UnpinRequest) -> UnpinResponse:
        served = await self._reloads.unpin()
        return UnpinResponse(snapshot_version=served.version, previous_pin=served.previous_pin)


def _folder(given: str) -> Path | None:
    if not given:
        return None
    if not given.startswith("/") or "\0" in given:
        fault = "not an absolute path; give that of a folder on the server's machine"
        raise invalid_field("checkpoint", fault)
    return Path(given)
