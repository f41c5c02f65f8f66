"""Arithmetic that comes out the same on every run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["reproducible"]


@contextmanager
def reproducible(threads: int = 1) -> Iterator[None]:
    """Sums add up in one order: threads neither share them nor race to add gradients of look-ups.

    Both settings are torch's, for the whole process, so they are put back afterwards.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
