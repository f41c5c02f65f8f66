"""A function of fixed shapes as one CUDA graph.

What it launches is recorded once and then replayed without Python: it reads its inputs where they
lay when it was recorded, and leaves its result where it left it then. So inputs are copied into
place before a replay, and results out of place after it; both by whoever owns the graph.
"""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

__all__ = ["CaptureMemory", "CapturedCall"]

T = TypeVar("T")

WARM_UPS = 3
"""Runs before the recording, which may load no kernel, tune nothing and make no workspace."""

_idle_streams: dict[torch.device, list[torch.cuda.Stream]] = {}


class CaptureMemory:
    """What graphs that never run at the same time share: one stream to be recorded on, and memory,
    in which a graph's intermediate values lie where another's do. Record the largest first.

    The stream is nobody else's as long as this lives, and then another's: torch has few of them,
    and graphs of one stream work in one workspace of cuBLAS. So those of one memory must not run at
    the same time, and those of two may.
    """

    def __init__(self, device: torch.device) -> None:
        gc.collect()  # graphs that only a circle of references still holds: their memory is large
        numbered = torch.empty(0, device=device).device  # `cuda` is some `cuda:0`
        idle = _idle_streams.setdefault(numbered, [])
        self.stream: torch.cuda.Stream
        try:
            self.stream = idle.pop()
        except IndexError:
            self.stream = torch.cuda.Stream(numbered)  # type: ignore[no-untyped-call]
        weakref.finalize(self, idle.append, self.stream)
        self.pool = torch.cuda.graph_pool_handle()


class CapturedCall(Generic[T]):
    """`result` is what the function returned: its tensors have new values after each replay."""

    def __init__(self, function: Callable[[], T], memory: CaptureMemory) -> None:
        self._memory = memory  # its stream's workspace is the graph's as well
        stream = memory.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
            stream.synchronize()
            # What they took is cached for this stream, and a recording, whose memory is its own,
            # cannot have it otherwise.
            torch.cuda.empty_cache()
            self._graph = torch.cuda.CUDAGraph()
            # Thread-local: other threads go on allocating and waiting meanwhile.
            self._graph.capture_begin(memory.pool, capture_error_mode="thread_local")
            try:
                self.result = function()
            except BaseException:
                with suppress(RuntimeError):  # the first error says more than that it was recorded
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        torch.cuda.current_stream(stream.device).wait_stream(stream)

    def replay(self) -> None:
        """On the current stream."""
        self._graph.replay()
