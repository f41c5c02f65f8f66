"""A second stream of a GPU, for a chain of small kernels next to large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grace.kernels import require_device


class SideStream:
    """Work that may run at the same time as the caller's later work; on a CPU it runs at once.

    A chain of small kernels leaves most of a GPU idle, and large kernels fill it. So the side
    stream has the higher priority: its kernels start as soon as an SM has room.

    Memory belongs to the stream that allocated it. So keep a reference to every tensor that both
    streams use, from before `fork` until after `join`. Both methods work within the recording of a
    CUDA graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        require_device(device)
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Put the work of the `with` block on the side stream, after all earlier work."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the caller's later work wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
