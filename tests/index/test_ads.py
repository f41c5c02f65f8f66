"""Looking ads up by id."""

import numpy as np

from support.plain_builder import plain_snapshot
from support.strategies import random_case


def test_ordinals_are_found_by_id_and_unknown_ids_are_told() -> None:
    case = random_case(np.random.default_rng(1), num_ads=111)
    ads = plain_snapshot(case.schema, case.vocab_sizes, case.ads).ads
    wanted = [ad.ad_id for ad in case.ads]
    found = ads.ordinals(wanted)
    assert ads.ad_ids[found].tolist() == wanted
    unknown = [i for i in range(max(wanted) + 2) if i not in set(wanted)]
    assert ads.ordinals([*unknown, -1, 2**62]).tolist() == [-1] * (len(unknown) + 2)
    assert ads.ordinals([]).tolist() == []


def test_a_bitmap_has_the_bits_of_known_ids_only() -> None:
    case = random_case(np.random.default_rng(2), num_ads=130)
    ads = plain_snapshot(case.schema, case.vocab_sizes, case.ads).ads
    chosen = [case.ads[i].ad_id for i in (0, 5, 5, 129)]
    words = ads.bitmap([*chosen, 10**12])
    bits = {i for i in range(130) if int(words[i // 64]) >> (i % 64) & 1}
    assert bits == set(ads.ordinals(chosen).tolist())
    assert len(words) == 3
