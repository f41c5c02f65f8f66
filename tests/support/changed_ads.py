"""Changes of raw ads, and what a snapshot must be and answer after them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from grace.configs.eligibility import MatcherMode
from grace.index import allocation
from grace.index.builder.batches import AdsReading
from grace.index.changes.applied import applied, canonical
from grace.index.changes.change import Changes, read_puts
from grace.index.forms.components import explain
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage.arrays import arrays_of, check_arrays, counts_of
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, load_ops
from support.arrays import assert_same_arrays
from support.builds import ads_table
from support.decode_cases import CPU, nodes_of
from support.oracle import RawAd, eligible_prefixes
from support.plain_builder import plain_snapshot
from support.plain_exact_lists import plain_exact_lists
from support.strategies import Case, asking, random_ads

RawChange = RawAd | int
"""An ad that is put, or the id of one that is removed."""

NATIVE = load_ops(CPU)


def random_changes(
    rng: np.random.Generator, case: Case, ads: Mapping[int, RawAd], most: int
) -> list[RawChange]:
    """Changes of different ads: new ones, others in their place or elsewhere, and removals.

    Some of the removed ids belong to no ad.
    """
    drawn = random_ads(rng, case.schema, case.vocab_sizes, int(rng.integers(1, most + 1)))
    ids = [*ads, *(ad.ad_id for ad in case.ads), 10**15]
    found: dict[int, RawChange] = {}
    for ad in drawn:
        kind, old = rng.random(), int(rng.choice(ids))
        if kind < 0.35:
            found[old] = old
        elif kind < 0.7:
            sid = ads[old].sid if old in ads and rng.random() < 0.5 else ad.sid
            found[old] = replace(ad, ad_id=old, sid=sid)
        else:
            found[ad.ad_id] = ad
    return [*found.values()]


def id_of(change: RawChange) -> int:
    return change if isinstance(change, int) else change.ad_id


def changed(ads: Mapping[int, RawAd], changes: Sequence[RawChange]) -> dict[int, RawAd]:
    left = {ad_id: ad for ad_id, ad in ads.items() if ad_id not in {*map(id_of, changes)}}
    return left | {each.ad_id: each for each in changes if isinstance(each, RawAd)}


def changes_of(case: Case, changes: Sequence[RawChange]) -> Changes:
    puts = [each for each in changes if isinstance(each, RawAd)]
    removed = [each for each in changes if isinstance(each, int)]
    if not puts:
        return Changes(removed=removed)
    (batch,) = ads_table(case.schema, puts).combine_chunks().to_batches()
    read, rejects = read_puts(AdsReading(case.schema, case.vocab_sizes), batch, threads=2)
    assert rejects == ()
    return replace(read, removed=removed)


def with_changes(snapshot: Snapshot, case: Case, changes: Sequence[RawChange]) -> Snapshot:
    """Apply changes as a server does: in memory of earlier snapshots, small arrays as well."""
    with patch.multiple(allocation, _LEAST_MAPPED=1, _FREE_PAUSE_SECONDS=0):
        after = applied(snapshot, changes_of(case, changes), 2, allocation.reused_memory)
        allocation.free_kept()
    return after


def assert_built(snapshot: Snapshot, case: Case, ads: Mapping[int, RawAd]) -> Snapshot:
    """In order it is the snapshot of a build of these ads, which this returns."""
    plain = plain_snapshot(case.schema, case.vocab_sizes, ads.values())
    facts: dict[str, Any] = {"mode": MatcherMode.CD, "exact": None}
    assert_same_arrays(canonical(snapshot), replace(plain, **facts))
    return plain


def assert_sound(snapshot: Snapshot) -> None:
    """The arrays pass the checks of a load, and the lists of mode `exact` follow from them."""
    manifest: Any = SimpleNamespace(
        counts=counts_of(snapshot), schema=snapshot.schema, vocab_sizes=snapshot.trie.vocab_sizes
    )
    check_arrays(manifest, arrays_of(snapshot), threads=1)
    num_values = tuple(map(len, snapshot.set_values))
    expected = plain_exact_lists(snapshot.ads, snapshot.rules, num_values)
    assert_same_arrays(snapshot.exact, expected)


def assert_answers(snapshot: Snapshot, plain: Snapshot, case: Case, ads: Sequence[RawAd]) -> None:
    """Nodes by the raw sets; ads and their order, and explanations, as those of a build."""
    requests = [*map(asking, case.users)]
    found = []
    for each in (snapshot, plain):
        users = UserEncoder(case.schema, each.set_values).encode(requests)
        leaves = np.tile(np.arange(each.trie.num_leaves, dtype=np.int32), len(users))
        ends = np.arange(len(users) + 1) * each.trie.num_leaves
        scores = np.zeros(len(leaves), np.float32)
        found.append(ExactMatcher(each, 1).match(users, ends, leaves, scores, len(ads)))
        index, tensors = DecodeIndex.of(each, CPU), UserTensors.of(users, CPU)
        for ops in (REFERENCE, NATIVE):
            assert nodes_of(ops.eligible_nodes(tensors, index), len(users), index) == [
                {each.trie.walk(prefix) for prefix in eligible_prefixes(case.schema, ads, user)}
                for user in case.users
            ]
    assert_same_arrays(found[0], found[1])
    ids = [ad.ad_id for ad in ads]
    for ordinal, other in zip(snapshot.ads.ordinals(ids), plain.ads.ordinals(ids), strict=True):
        for request in requests:
            reasons, expected = (
                explain(each, int(each.ads.ad_rule[at]), request)
                for each, at in ((snapshot, ordinal), (plain, other))
            )
            assert reasons == expected
