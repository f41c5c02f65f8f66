"""SID to ads: the ads of each leaf, their rules and weights."""

from ctypes import c_int64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.native.loader import array_in, array_out, declare

_find = declare(
    "grace_find_ordinals",
    *(c_int64, array_in(np.int64), array_in(np.int32)),
    *(c_int64, array_in(np.int64), array_out(np.int64)),
)


@dataclass(frozen=True, slots=True)
class SidToAds:
    """An ad's *ordinal* is its place in (SID, ad id) order."""

    # [leaves + 1], ordinals of leaf i: ad_offsets[i] .. [i + 1], at least one
    ad_offsets: npt.NDArray[np.int64]
    ad_ids: npt.NDArray[np.int64]  # [ads]: ascending within a leaf, unique over all
    ad_rule: npt.NDArray[np.int32]  # [ads]
    ad_weight: npt.NDArray[np.float32]  # [ads]: finite
    ad_lookup: npt.NDArray[np.int32]  # [ads]: ordinals in ascending order of ad id

    @property
    def num_ads(self) -> int:
        return len(self.ad_ids)

    def ordinals(self, ad_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The ordinals of ad ids, -1 for those this snapshot does not have.   [n] -> [n]"""
        wanted = np.asarray(ad_ids)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"ad ids must be integers, got {wanted.dtype}")
        wanted = np.ascontiguousarray(wanted, np.int64)
        found = np.empty(wanted.shape, np.int64)
        _find(self.num_ads, self.ad_ids, self.ad_lookup, wanted.size, wanted, found)
        return found

    def bitmap_of(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return one bit per ordinal, set for the given ones.   [ceil(ads / 64)]"""
        words = np.zeros(-(-self.num_ads // 64), np.uint64)
        np.bitwise_or.at(words, ordinals >> 6, np.uint64(1) << (ordinals & 63).astype(np.uint64))
        return words
