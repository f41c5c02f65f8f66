"""A function of fixed shapes as one CUDA graph.

What it launches is recorded once and then replayed without Python: it reads its inputs where they
lay when it was recorded, and leaves its result where it left it then. So inputs are copied into
place before a replay, and results out of place after it; both by whoever owns the graph.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

__all__ = ["CaptureMemory", "CapturedCall"]

T = TypeVar("T")

WARM_UPS = 3
"""Runs before the recording, which may load no kernel, tune nothing and make no workspace."""


class CaptureMemory:
    """What graphs that never run at the same time share: one stream to be recorded on, and memory,
    in which a graph's intermediate values lie where another's do. Record the largest first."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()


class CapturedCall(Generic[T]):
    """`result` is what the function returned: its tensors have new values after each replay."""

    def __init__(self, function: Callable[[], T], memory: CaptureMemory) -> None:
        stream = memory.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
            stream.synchronize()
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
