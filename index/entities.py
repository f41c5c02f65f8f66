"""Entities are what ads belong to: campaigns, advertisers and the like."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_ENTITY = -1  # in `of_ad`: the ad belongs to no entity of this kind


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities of one kind. Their *places* number them in ascending order of id."""

    name: str
    ids: npt.NDArray[np.int64]  # [entities]: ascending, at least one ad each
    of_ad: npt.NDArray[np.int32]  # [ads]: the place of each ordinal's entity, or NO_ENTITY
    # [entities + 1], the ads of place i: ads[offsets[i] : offsets[i + 1]]
    offsets: npt.NDArray[np.int64]
    ads: npt.NDArray[np.int32]  # [...]: ordinals, ascending within an entity

    def __len__(self) -> int:
        return len(self.ids)

    def places(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the place of each id, or -1 if the snapshot does not have it.   [n] -> [n]"""
        wanted = np.asarray(ids, np.int64)
        if not len(self.ids):
            return np.full(wanted.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, at, -1)
