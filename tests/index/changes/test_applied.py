"""A snapshot after changes, against builds of the changed ads and the oracle on raw sets."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import InputError
from grace.index.changes.applied import applied, canonical
from grace.index.changes.change import Changes
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import write_snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors, with_eligible
from grace.kernels.eligibility.batch import eligible_nodes_on_gpu
from support.arrays import assert_same_arrays
from support.changed_ads import (
    NATIVE,
    RawChange,
    assert_answers,
    assert_built,
    assert_sound,
    changed,
    changes_of,
    id_of,
    random_changes,
    with_changes,
)
from support.decode_cases import CPU
from support.emulated_cuda import emulated_cuda
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import (
    Case,
    asking,
    cases,
    examples,
    random_case,
    random_schema,
    random_schema_of,
)

Seeds = st.integers(0, 2**32 - 1)


def by_id(case: Case) -> dict[int, RawAd]:
    return {ad.ad_id: ad for ad in case.ads}


def base_of(case: Case, mode: MatcherMode = MatcherMode.EXACT) -> Snapshot:
    return plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode)


@examples(60)
@given(case=cases(most_users=5), seed=Seeds)
def test_changes_make_the_snapshot_of_a_build_of_the_changed_ads(case: Case, seed: int) -> None:
    assert_steps(case, np.random.default_rng(seed), steps=3)


@pytest.mark.parametrize("kind", ["attributes", "sets", "ranges", "flights", "properties"])
def test_rules_of_each_kind_alone_are_found_or_appended(kind: str) -> None:
    """Other kinds would make most rules differ."""
    for seed in range(9):
        rng = np.random.default_rng(seed)
        assert_steps(random_case(rng, schema=random_schema_of(rng, kind)), rng, steps=3)


def assert_steps(case: Case, rng: np.random.Generator, steps: int) -> None:
    snapshot, ads = base_of(case), by_id(case)
    for _ in range(steps):
        changes = random_changes(rng, case, ads, most=20)
        ads = changed(ads, changes)
        snapshot = with_changes(snapshot, case, changes)
        if not ads:
            return
        plain = assert_built(snapshot, case, ads)
        assert_sound(snapshot)
        assert_answers(snapshot, plain, case, [*ads.values()])


@examples(20)
@given(case=cases(), seed=Seeds)
def test_any_order_and_batching_of_the_last_changes_make_the_same_snapshot(
    case: Case, seed: int
) -> None:
    rng, ads = np.random.default_rng(seed), by_id(case)
    changes = [each for _ in range(3) for each in random_changes(rng, case, ads, most=9)]
    last = [*{id_of(each): each for each in changes}.values()]
    each_alone = [[each] for each in changes]
    shuffled = [last[at] for at in rng.permutation(len(last))]
    cuts = np.sort(rng.integers(len(last) + 1, size=2)).tolist()
    batches = [shuffled[: cuts[0]], shuffled[cuts[0] : cuts[1]], shuffled[cuts[1] :]]
    ads = changed(ads, last)
    for ways in (each_alone, [last], batches):
        snapshot = base_of(case)
        for batch in ways:
            snapshot = with_changes(snapshot, case, batch)
        if ads:
            assert_built(snapshot, case, ads)
        else:
            assert_empty(snapshot, case)


def assert_empty(snapshot: Snapshot, case: Case) -> None:
    """No node but the root, no candidate and no ad for any user."""
    assert snapshot.trie.level_counts == (1, *[0] * len(case.vocab_sizes))
    assert (snapshot.ads.num_ads, snapshot.trie.num_entries) == (0, 0)
    assert [len(entities) for entities in snapshot.entities] == [0] * len(snapshot.entities)
    users = UserEncoder(case.schema, snapshot.set_values).encode([*map(asking, case.users)])
    ends, none = np.zeros(len(users) + 1, np.int64), np.zeros(0, np.int32)
    got = ExactMatcher(snapshot, 1).match(users, ends, none, none.astype(np.float32), 9)
    assert len(got.ad_ids) == 0
    index = DecodeIndex.of(snapshot, CPU)
    tensors = with_eligible(UserTensors.of(users, CPU), index, NATIVE)
    roots = torch.zeros(len(users), 1, dtype=torch.int32)
    assert len(NATIVE.admit_children(roots, tensors, index).packed().tokens) == 0


@examples(20)
@given(case=cases(), seed=Seeds)
def test_all_ads_may_go_and_come_back(case: Case, seed: int) -> None:
    rng, ads = np.random.default_rng(seed), by_id(case)
    gone = with_changes(base_of(case), case, [*ads])
    assert_empty(gone, case)
    assert_empty(with_changes(gone, case, [*ads]), case)
    again: list[RawChange] = [ad for ad in case.ads if rng.random() < 0.5] or [case.ads[0]]
    ads = changed({}, again)
    back = with_changes(gone, case, again)
    assert_sound(back)
    assert_answers(back, assert_built(back, case, ads), case, [*ads.values()])


def test_a_gpu_admits_no_node_of_a_snapshot_without_ads() -> None:
    case = random_case(np.random.default_rng(1), num_users=17)
    gone = with_changes(base_of(case), case, [*by_id(case)])
    users = UserEncoder(case.schema, gone.set_values).encode([*map(asking, case.users)])
    tensors, index = UserTensors.of(users, CPU), DecodeIndex.of(gone, CPU)
    with emulated_cuda():
        assert not eligible_nodes_on_gpu(tensors, index)[:, :1].any()


def test_a_snapshot_without_ads_is_not_written(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(2))
    gone = with_changes(base_of(case), case, [*by_id(case)])
    with pytest.raises(InputError, match="cannot write this snapshot: counts"):
        write_snapshot(canonical(gone), tmp_path)


@pytest.mark.parametrize("mode", [MatcherMode.UNION, MatcherMode.STATIC, MatcherMode.DYNAMIC])
def test_the_matchers_of_other_modes_follow(mode: MatcherMode) -> None:
    rng = np.random.default_rng(5)
    case = random_case(rng, num_ads=33)
    changes = random_changes(rng, case, by_id(case), most=20)
    got = with_changes(base_of(case, mode), case, changes)
    after = replace(case, ads=tuple(changed(by_id(case), changes).values()))
    expected = base_of(after, mode)
    assert (got.mode, got.exact) == (mode, None)
    assert_same_arrays(got.matchers, expected.matchers)
    gone = with_changes(got, case, [ad.ad_id for ad in after.ads])
    assert_same_arrays(with_changes(gone, case, after.ads).matchers, expected.matchers)


def test_arrays_that_do_not_change_are_shared() -> None:
    rng = np.random.default_rng(11)
    case = random_case(rng, num_ads=63, schema=random_schema(rng, num_sets=2))
    base = base_of(case)
    copy = deepcopy(base)
    again = with_changes(base, case, [replace(case.ads[0], weight=3.5)])
    assert again.trie is base.trie
    assert again.set_values is base.set_values
    assert all(one is other for one, other in zip(again.rules.parts, base.rules.parts, strict=True))
    assert again.rules.rows is base.rules.rows
    assert_same_arrays(base, copy)


def test_an_ad_with_two_changes_is_refused() -> None:
    case = random_case(np.random.default_rng(3), num_ads=9)
    put = changes_of(case, [case.ads[0]])
    for wrong in (replace(put, removed=[case.ads[0].ad_id]), Changes(removed=[7, 7])):
        with pytest.raises(ValueError, match="an ad is changed twice"):
            applied(base_of(case), wrong, 1)
