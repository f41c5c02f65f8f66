"""What a batch of users asks about one set."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SetQueries"]


@dataclass(frozen=True, slots=True)
class SetQueries:
    """One set's side of a batch of B requests.

    offsets        int32 [B + 1]
    hashes         uint64 [...]    Bloom queries, one per distinct value
    value_offsets  int32 [B + 1]
    value_ids      int32 [...]     ids of the values that some rule names, ascending per request
    """

    offsets: npt.NDArray[np.int32]
    hashes: npt.NDArray[np.uint64]
    value_offsets: npt.NDArray[np.int32]
    value_ids: npt.NDArray[np.int32]
