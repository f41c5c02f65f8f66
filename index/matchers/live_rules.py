"""Which rules of which leaves live: those of at least one ad that is not stopped."""

from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from grace.index.matchers.exact_lists import ExactLists
from grace.index.matching.ads import SidToAds
from grace.native.loader import address_of, array_in, array_out, declare

_live_pairs = declare(
    "grace_live_pairs",
    *(c_int64, c_int64, array_in(np.int64), array_in(np.int32)),
    *(array_in(np.int32), array_in(np.int32), c_int32),
    *(c_void_p, c_int64, array_in(np.int64)),
    *(array_out(np.int64), array_out(np.int32), array_out(np.int64)),
)


def changed_pairs(
    ads: SidToAds,
    lists: ExactLists,
    stopped: npt.NDArray[np.uint64] | None,
    ordinals: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return what `leaf_rules` must hold now for the ads whose stop state changed.

    stopped   uint64 [ceil(ads / 64)]   bit i: ordinal i is stopped; None: no ad is
    ordinals  int64 [...]               the changed ads, in any order
    Returns positions int64 [n] in `leaf_rules`, ascending, and int32 [n]: the rule, or
    `lists.num_rules` where all ads of the leaf that have this rule are stopped.
    """
    if (ordinals[1:] < ordinals[:-1]).any():
        ordinals = np.sort(ordinals)
    positions = np.empty(len(ordinals), np.int64)
    rules, written = np.empty(len(ordinals), np.int32), np.zeros(1, np.int64)
    _live_pairs(
        *(len(ads.ad_offsets) - 1, ads.num_ads, ads.ad_offsets, ads.ad_rule),
        *(lists.leaf_offsets, lists.leaf_rules, lists.num_rules),
        address_of("stopped", stopped, np.uint64, (-(-ads.num_ads // 64),)),
        *(len(ordinals), ordinals),
        *(positions, rules, written),
    )
    return positions[: written[0]], rules[: written[0]]
