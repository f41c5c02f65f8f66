"""Watch the selections of a search, also without the libraries of a GPU."""

from collections.abc import Callable
from dataclasses import replace

from grace.kernels import Beams, Ops
from grace.kernels.decode.select_beams import Choice


def observed(ops: Ops, observe: Callable[[Choice, Beams], None]) -> Ops:
    """Return the operations; each selection also calls `observe` with itself and its beams."""

    def select_beams(given: Choice) -> Beams:
        beams = ops.select_beams(given)
        observe(given, beams)
        return beams

    return replace(ops, select_beams=select_beams)
