"""A call as its transport has it: as much of grpc.aio.ServicerContext as is used here."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc

__all__ = ["Context", "GrpcContext", "Trailers"]

Trailers: TypeAlias = tuple[tuple[str, str], ...]


class Context(Protocol):
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...
    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn: ...


class GrpcContext(Context, Protocol):
    """Of gRPC in this process; its own types leave the None out."""

    def time_remaining(self) -> float | None: ...
