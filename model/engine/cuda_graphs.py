"""A function of fixed shapes, recorded once as a CUDA graph and replayed without Python.

A graph knows addresses, not values. It reads its inputs where they were during the recording, and
leaves its result in the same memory each time. The graph's owner copies inputs into place before a
replay, and results out of place after it.
"""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

import torch

from grace.kernels import require_device

T = TypeVar("T")

WARM_UPS = 3
"""Runs before the recording: while it records, no kernel may load, tune or make a workspace."""


class GraphMemory:
    """The stream and the memory pool that graphs share which never run at the same time.

    Their intermediate values overlap in the pool, so record the largest graph first. torch has few
    streams, and the graphs of one stream share a cuBLAS workspace. So each GraphMemory owns its
    stream while it lives, and later ones reuse it.
    """

    idle_streams: ClassVar[dict[torch.device, list[torch.cuda.Stream]]] = {}

    def __init__(self, device: torch.device) -> None:
        require_device(device)
        gc.collect()  # graphs in reference cycles still hold large amounts of memory
        numbered = torch.empty(0, device=device).device  # `cuda` -> `cuda:0`, say
        idle = self.idle_streams.setdefault(numbered, [])
        self.stream: torch.cuda.Stream
        try:
            self.stream = idle.pop()
        except IndexError:
            self.stream = torch.cuda.Stream(numbered)  # type: ignore[no-untyped-call]
        weakref.finalize(self, idle.append, self.stream)
        self.pool = torch.cuda.graph_pool_handle()


class GraphedCall(Generic[T]):
    """`result` is what the function returned. Each replay writes new values into its tensors."""

    def __init__(
        self, function: Callable[[], T], memory: GraphMemory, warm_ups: int = WARM_UPS
    ) -> None:
        self._memory = memory  # the graph uses its stream's workspace
        stream = memory.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(warm_ups):
                function()
            stream.synchronize()
            # The recording has its own pool and cannot use what the warm-up left in the cache.
            torch.cuda.empty_cache()
            self._graph = torch.cuda.CUDAGraph()
            # Thread-local: other threads may allocate and wait meanwhile.
            self._graph.capture_begin(memory.pool, capture_error_mode="thread_local")
            try:
                self.result = function()
            except BaseException:
                with suppress(RuntimeError):  # the first error says more than a failed recording
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        torch.cuda.current_stream(stream.device).wait_stream(stream)

    def replay(self) -> None:
        """Replay on the current stream."""
        self._graph.replay()
