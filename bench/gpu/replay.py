"""A function as one CUDA graph that gives back, before and after, what memory it does not need.

A baseline of the ladder holds tens of gigabytes. What PyTorch caches belongs to the stream it was
used on, or to a graph: kept after a first run, after the runs that warm up, and in the graph, the
same gigabytes would be taken three times over.
"""

import gc
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory

__all__ = ["Replay", "give_memory_back"]

T = TypeVar("T")


class Replay(Generic[T]):
    """Call it to replay; what comes back is the same memory each time.

    On a CPU it is the function itself.
    """

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        self._function = function
        self._graph: GraphedCall[T] | None = None
        if device.type != "cuda":
            return

        def run() -> T:
            result = function()
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.empty_cache()
            return result

        give_memory_back(device)
        self._graph = GraphedCall(run, GraphMemory(device))

    def __call__(self) -> T:
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._graph.result


def give_memory_back(device: torch.device) -> None:
    """What nothing refers to any more, of every stream and graph."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
