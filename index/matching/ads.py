"""SID to ads: the ads of each leaf, their rules and weights, and the entities they belong to."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import Float32, Int32, Int64, UInt64
from grace.configs.errors import InputError
from grace.native.loader import declare

_find = declare("grace_find_ordinals(int64, int64[], int32[], int64, int64[], out int64[])")

NO_ENTITY = -1  # in `of_ad`: the ad belongs to no entity of this kind


@dataclass(frozen=True, slots=True)
class SidToAds:
    """An ad's *ordinal* is its place in (SID, ad id) order."""

    # [leaves + 1], ordinals of leaf i: ad_offsets[i] .. [i + 1], at least one
    ad_offsets: Int64
    ad_ids: Int64  # [ads]: ascending within a leaf, unique over all
    ad_rule: Int32  # [ads]
    ad_weight: Float32  # [ads]: finite
    ad_lookup: Int32  # [ads]: ordinals in ascending order of ad id

    @property
    def num_ads(self) -> int:
        return len(self.ad_ids)

    def ordinals(self, ad_ids: npt.ArrayLike) -> Int64:
        """The ordinals of ad ids, -1 for those this snapshot does not have.   [n] -> [n]"""
        wanted = np.asarray(ad_ids)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"ad ids must be integers, got {wanted.dtype}")
        wanted = np.ascontiguousarray(wanted, np.int64)
        found = np.empty(wanted.shape, np.int64)
        _find(self.num_ads, self.ad_ids, self.ad_lookup, wanted.size, wanted, found)
        return found

    def bitmap_of(self, ordinals: Int64) -> UInt64:
        """Return one bit per ordinal, set for the given ones.   [ceil(ads / 64)]"""
        words = np.zeros(-(-self.num_ads // 64), np.uint64)
        np.bitwise_or.at(words, ordinals >> 6, np.uint64(1) << (ordinals & 63).astype(np.uint64))
        return words


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities of one kind, such as campaigns. Their *places* number them by ascending id."""

    name: str
    ids: Int64  # [entities]: ascending, at least one ad each
    of_ad: Int32  # [ads]: the place of each ordinal's entity, or NO_ENTITY
    # [entities + 1], the ads of place i: ads[offsets[i] : offsets[i + 1]]
    offsets: Int64
    ads: Int32  # [...]: ordinals, ascending within an entity

    def __len__(self) -> int:
        return len(self.ids)

    def places(self, ids: npt.ArrayLike) -> Int64:
        """Return the place of each id, or -1 if the snapshot does not have it.   [n] -> [n]"""
        wanted = np.asarray(ids, np.int64)
        if not len(self.ids):
            return np.full(wanted.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, at, -1)
