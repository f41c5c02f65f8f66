"""When calls arrive: a Poisson process, as many independent callers make it."""

import numpy as np
import numpy.typing as npt

__all__ = ["poisson_arrivals"]


def poisson_arrivals(rate: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """Ascending times in [0, seconds), `rate` a second on average; equal seeds, equal times."""
    rng = np.random.default_rng(seed)
    count = int(rng.poisson(rate * seconds))
    # Given how many there are, the arrivals of a Poisson process are uniform.
    return np.sort(rng.random(count)) * seconds
