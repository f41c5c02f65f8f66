"""Exact matching against the oracle on raw sets."""

import threading
from collections.abc import Callable
from ctypes import ArgumentError
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import InputError, NativeError
from grace.index.matchers.node_matchers import value_hash
from grace.index.matching.exact import ExactMatcher, MatchedAds
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import KINDS, Attribute, TargetingSchema, TargetSet
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder, UserRows
from support.oracle import RawAd, first_failure, is_excluded, within_limits
from support.plain_builder import plain_snapshot
from support.strategies import (
    ENTITY_IDS,
    Case,
    asking,
    cases,
    examples,
    random_case,
    random_schema,
    random_schema_of,
)

PLENTY = 1 << 40
FATES = ("sids", "wasted", "generated", "stopped", "excluded", "matched")

Value = TypeVar("Value")
Returned = tuple[int, float, int]
"""An ad's id, its score and the position of its leaf."""


@dataclass(frozen=True)
class Ask:
    """The arguments of a call except the users: all random, odd on purpose."""

    leaves: list[list[int]]
    scores: list[list[float]]
    max_ads: list[int]
    stopped: list[int] | None = None
    exclude_ads: list[list[int]] | None = None
    exclude: list[dict[str, list[int]]] | None = None
    at_most: list[dict[str, int]] | None = None
    weights: dict[int, float] | None = None


def random_ask(rng: np.random.Generator, case: Case, num_leaves: int) -> Ask:
    users = range(len(case.users))
    ids = [ad.ad_id for ad in case.ads]
    leaves = []
    for _ in users:
        some = rng.permutation(num_leaves)[: rng.integers(num_leaves + 1)].tolist()
        dead = [NO_NODE] * int(rng.integers(3))
        leaves.append([int(leaf) for leaf in rng.permutation([*some, *dead])])
    few_scores = [-0.0, 0.0, -1.5, -np.inf, -3.25]
    return Ask(
        leaves=leaves,
        scores=[[float(rng.choice(few_scores)) for _ in row] for row in leaves],
        max_ads=[int(rng.choice([0, 1, 7, PLENTY])) for _ in users],
        stopped=_sample(rng, [*ids, 10**15]) if rng.random() < 0.5 else None,
        exclude_ads=[_sample(rng, [*ids, -1, 10**15]) for _ in users]
        if rng.random() < 0.5
        else None,
        exclude=[_entities(rng, case, lambda: _sample(rng, [*ENTITY_IDS, -1, 5])) for _ in users]
        if rng.random() < 0.5
        else None,
        at_most=[_entities(rng, case, lambda: int(rng.choice([0, 1, 1, 2, 5]))) for _ in users]
        if rng.random() < 0.6
        else None,
        weights={ad_id: float(rng.choice([-1.5, 0.0, 7.0])) for ad_id in _sample(rng, ids)}
        if rng.random() < 0.5
        else None,
    )


def _entities(rng: np.random.Generator, case: Case, value: Callable[[], Value]) -> dict[str, Value]:
    """A value for some of the schema's entities."""
    return {name: value() for name in case.schema.entities if rng.random() < 0.7}


def _sample(rng: np.random.Generator, ids: list[int]) -> list[int]:
    return [int(i) for i in rng.choice(ids, size=rng.integers(len(ids) // 2 + 1))]


def live_weights(snapshot: Snapshot, ask: Ask) -> npt.NDArray[np.float32] | None:
    if ask.weights is None:
        return None
    of_ads = zip(snapshot.ads.ad_ids.tolist(), snapshot.ads.ad_weight.tolist(), strict=True)
    return np.array([ask.weights.get(ad_id, weight) for ad_id, weight in of_ads], np.float32)


def ask_native(matcher: ExactMatcher, snapshot: Snapshot, users: UserRows, ask: Ask) -> MatchedAds:
    offsets = np.cumsum([0, *(len(row) for row in ask.leaves)])
    stopped = None
    if ask.stopped is not None:
        found = snapshot.ads.ordinals(ask.stopped)
        stopped = snapshot.ads.bitmap_of(found[found >= 0])
    return matcher.match(
        users,
        offsets,
        np.array([leaf for row in ask.leaves for leaf in row], np.int32),
        np.array([score for row in ask.scores for score in row], np.float32),
        ask.max_ads,
        stopped=stopped,
        exclude_ads=ask.exclude_ads,
        exclude=ask.exclude,
        at_most=ask.at_most,
        weights=live_weights(snapshot, ask),
    )


def components(case: Case) -> list[str]:
    return ["attributes", *case.schema.component_names]


def expected(case: Case, ask: Ask) -> list[tuple[dict[str, int], bool, list[Returned]]]:
    """Per request: the counts, whether max_ads cut the list, and the reply."""
    sids = sorted({ad.sid for ad in case.ads})
    stopped, weights = set(ask.stopped or ()), ask.weights or {}
    replies = []
    for b, user in enumerate(case.users):
        excluded_ads = set(ask.exclude_ads[b]) if ask.exclude_ads is not None else set()
        exclude = ask.exclude[b] if ask.exclude is not None else {}
        counts = dict.fromkeys((*FATES, *components(case)), 0)
        matched = []
        for position, (leaf, score) in enumerate(zip(ask.leaves[b], ask.scores[b], strict=True)):
            own = [ad for ad in case.ads if leaf != NO_NODE and ad.sid == sids[leaf]]
            counts["sids"] += leaf != NO_NODE
            counts["wasted"] += bool(own) and all(
                first_failure(case.schema, ad, user) is not None for ad in own
            )
            for ad in own:
                fate = first_failure(case.schema, ad, user)
                if fate is None and ad.ad_id in stopped:
                    fate = "stopped"
                elif fate is None and (ad.ad_id in excluded_ads or is_excluded(ad, exclude)):
                    fate = "excluded"
                counts["generated"] += 1
                counts[fate or "matched"] += 1
                if fate is None:
                    matched.append(
                        (-score, -weights.get(ad.ad_id, ad.weight), ad.ad_id, position, ad)
                    )
        in_order = sorted(matched, key=lambda each: each[:3])
        at_most = ask.at_most[b] if ask.at_most is not None else {}
        limited = within_limits([ad for *_, ad in in_order], at_most, ask.max_ads[b])
        counts["limited"] = limited.left_out
        best = [in_order[place] for place in limited.places]
        reply = [(ad_id, -score, at) for score, _, ad_id, at, _ in best]
        replies.append((counts, limited.truncated, reply))
    return replies


def assert_equals_oracle(case: Case, ask: Ask, got: MatchedAds) -> None:
    assert len(got) == len(case.users)
    is_cut = got.counts.returned + got.counts.limited < got.counts.matched
    for b, (counts, truncated, reply) in enumerate(expected(case, ask)):
        rows = slice(*got.offsets[b : b + 2])
        triples = zip(
            got.ad_ids[rows].tolist(),
            got.scores[rows].tolist(),
            got.leaf_positions[rows].tolist(),
            strict=True,
        )
        assert list(triples) == reply
        assert {
            **{name: getattr(got.counts, name)[b] for name in (*FATES, "limited")},
            **dict(zip(components(case), got.counts.failed[b], strict=True)),
        } == counts
        assert is_cut[b] == truncated
    assert_counts_conserved(got)


def assert_counts_conserved(got: MatchedAds) -> None:
    c = got.counts
    filtered = c.failed.sum(axis=1) + c.stopped + c.excluded
    assert (c.generated == filtered + c.matched).all()
    assert (c.returned == np.diff(got.offsets)).all()
    assert (c.returned + c.limited <= c.matched).all()


@examples(25)
@given(case=cases(), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2, 5]))
def test_exact_matching_equals_the_oracle(case: Case, seed: int, threads: int) -> None:
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    ask = random_ask(np.random.default_rng(seed), case, snapshot.trie.num_leaves)
    users = UserEncoder(case.schema, snapshot.set_values).encode([*map(asking, case.users)])
    got = ask_native(ExactMatcher(snapshot, threads), snapshot, users, ask)
    assert_equals_oracle(case, ask, got)


@pytest.mark.parametrize("kind", KINDS)
@examples(9)
@given(seed=st.integers(0, 2**32 - 1))
def test_each_kind_of_rule_alone_equals_the_oracle(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=77, num_users=9, schema=random_schema_of(rng, kind))
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    every = np.tile(np.arange(snapshot.trie.num_leaves, dtype=np.int32), (9, 1))
    users = UserEncoder(case.schema, snapshot.set_values).encode([*map(asking, case.users)])
    ask = Ask(every.tolist(), [[0.0] * len(row) for row in every], [PLENTY] * 9)
    got = ask_native(ExactMatcher(snapshot, 2), snapshot, users, ask)
    assert_equals_oracle(case, ask, got)


SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")),),
    (TargetSet("place", 64, 2, 63),),
    hash_seed=3,
    entities=("campaign",),
)


def test_no_requests_and_empty_requests_are_answered() -> None:
    snapshot = plain_snapshot(SCHEMA, (9,), [RawAd(1, (1,))])
    users = UserEncoder(SCHEMA, snapshot.set_values).encode([{}, {}])
    dead = np.array([NO_NODE, NO_NODE], np.int32)
    got = ExactMatcher(snapshot, 2).match(
        users, np.array([0, 0, 2]), dead, np.array([np.nan, 0], np.float32), 5
    )
    assert got.offsets.tolist() == [0, 0, 0]
    nobody = UserEncoder(SCHEMA, snapshot.set_values).encode([])
    no_leaves = (np.zeros(1, np.int64), dead[:0], np.zeros(0, np.float32))
    assert ExactMatcher(snapshot, 2).match(nobody, *no_leaves, 5).offsets.tolist() == [0]
    assert got.counts.generated.tolist() == [0, 0]


def test_concurrent_calls_of_one_matcher_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(11)
    schema = random_schema(rng, attribute_sizes=[5], num_sets=2)
    case = random_case(rng, num_ads=63, num_users=9, schema=schema)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    users = UserEncoder(case.schema, snapshot.set_values).encode([*map(asking, case.users)])
    matcher = ExactMatcher(snapshot, threads=2)
    asks = [random_ask(rng, case, snapshot.trie.num_leaves) for _ in range(4)]
    results: dict[int, list[MatchedAds]] = {}

    def work(i: int) -> None:
        results[i] = [ask_native(matcher, snapshot, users, asks[i]) for _ in range(11)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, ask in enumerate(asks):
        for got in results[i]:
            assert_equals_oracle(case, ask, got)


@pytest.mark.parametrize(
    ("leaves", "scores", "fault"),
    [
        ([0, 3], [0, 0], r"request 1, leaf 3 at 0: not one of 0 to 2"),
        ([0, -2], [0, 0], r"request 1, leaf -2 at 0: not one of 0 to 2"),
        ([0, 1, 2], [0, 0, np.nan], r"request 1, leaf 2 at 1: its score is not a number"),
        ([0, 1, 2, 1], [0, 0, 0, 0], r"request 1, leaf 1 at 2: named a second time"),
    ],
)
def test_a_bad_leaf_is_refused_by_request_and_position(
    leaves: list[int], scores: list[float], fault: str
) -> None:
    snapshot = plain_snapshot(SCHEMA, (9,), [RawAd(i, (i,)) for i in range(3)])
    users = UserEncoder(SCHEMA, snapshot.set_values).encode([{}, {}])
    with pytest.raises(NativeError, match=fault):
        ExactMatcher(snapshot, 2).match(
            users,
            np.array([0, 1, len(leaves)]),
            np.array(leaves, np.int32),
            np.array(scores, np.float32),
            9,
        )


def test_arguments_that_do_not_fit_are_refused() -> None:
    snapshot = plain_snapshot(SCHEMA, (9,), [RawAd(i, (i,)) for i in range(3)])
    users = UserEncoder(SCHEMA, snapshot.set_values).encode([{}])
    matcher = ExactMatcher(snapshot, 1)
    offsets, leaves, scores = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.float32)
    for wrong in (np.array([0, 0, 1]), np.array([0, 2]), np.array([0])):
        with pytest.raises(ValueError, match="leaf_offsets must be"):
            matcher.match(users, wrong, leaves, scores, 1)
    with pytest.raises(ValueError, match=r"leaves and scores of one shape .* \[1\] and \[2\]"):
        matcher.match(users, offsets, leaves, np.zeros(2, np.float32), 1)
    with pytest.raises(ArgumentError):
        matcher.match(users, offsets, leaves.astype(np.int64), scores, 1)
    with pytest.raises(NativeError, match="max_ads is negative"):
        matcher.match(users, offsets, leaves, scores, -1)
    with pytest.raises(ValueError, match="could not be broadcast"):
        matcher.match(users, offsets, leaves, scores, [1, 1])
    with pytest.raises(ValueError, match=r"stopped must be contiguous uint64 \[1\], got .* \[2\]"):
        matcher.match(users, offsets, leaves, scores, 1, stopped=np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match=r"weights must be contiguous float32 \[3\], got"):
        matcher.match(users, offsets, leaves, scores, 1, weights=np.zeros(1, np.float32))
    for value_id in (-1, len(snapshot.set_values[0])):
        value = {
            "value_offsets": np.array([0, 1], np.int32),
            "value_ids": np.array([value_id], np.int32),
        }
        strange = replace(users, asked=(users.asked[0], users.asked[1]._replace(**value)))
        with pytest.raises(NativeError, match="a request's value id is out of range"):
            matcher.match(strange, offsets, leaves, scores, 1)
    with pytest.raises(ValueError, match="expected 1 lists of ids, got 2"):
        matcher.match(users, offsets, leaves, scores, 1, exclude_ads=[[], []])
    with pytest.raises(ValueError, match=r"at_most must be contiguous int64 \[1, 1\], got"):
        matcher.match(users, offsets, leaves, scores, 1, at_most=[{"campaign": 1}, {}])


def test_a_matcher_keeps_its_snapshot_alive() -> None:
    snapshot = plain_snapshot(SCHEMA, (9,), [RawAd(i, (i % 9,)) for i in range(63)])
    users = UserEncoder(SCHEMA, snapshot.set_values).encode([{}])
    matcher = ExactMatcher(snapshot, 1)
    del snapshot
    got = matcher.match(
        users, np.array([0, 9]), np.arange(9, dtype=np.int32), np.zeros(9, np.float32), PLENTY
    )
    assert got.ad_ids.tolist() == list(range(63))


ONE_SET = TargetingSchema((), (TargetSet("s", 64, 2, 64),), 1)
ONE_LEAF = (np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.float32))


def test_user_rows_of_another_snapshot_are_refused_even_with_the_same_schema() -> None:
    """Value ids mean other values there: a user of alpha would get the ads of beta."""

    def snapshot_of(value: str) -> Snapshot:
        rules = {"s": (frozenset({value}), None)}
        return plain_snapshot(ONE_SET, (2,), [RawAd(1, (0,), 0.0, rules)])

    alpha, beta = snapshot_of("alpha"), snapshot_of("beta")
    rows = UserEncoder(ONE_SET, alpha.set_values).encode([{"s": ["alpha"]}])
    assert ExactMatcher(alpha, 1).match(rows, *ONE_LEAF, max_ads=9).ad_ids.tolist() == [1]
    with pytest.raises(InputError, match="encoded for another snapshot"):
        ExactMatcher(beta, 1).match(rows, *ONE_LEAF, max_ads=9)


def test_users_have_the_hashes_that_a_snapshot_reads_and_others_are_refused() -> None:
    ads = [RawAd(1, (0,), 0.0, {"s": (frozenset({"yes"}), None)})]
    union = plain_snapshot(ONE_SET, (2,), ads, MatcherMode.UNION)
    unhashed = UserEncoder.of(replace(union, matchers=None)).encode([{"s": ["yes"]}])
    hashed = UserEncoder.of(union).encode([{"s": ["yes"]}])
    assert (unhashed.asked[1].value_ids.tolist(), unhashed.asked[1].hashes.tolist()) == ([0], [0])
    assert hashed.asked[1].hashes.tolist() == [value_hash("yes", 1)]
    assert ExactMatcher(union, 1).match(hashed, *ONE_LEAF, max_ads=9).ad_ids.tolist() == [1]
    with pytest.raises(InputError, match="encoded for another snapshot"):
        ExactMatcher(union, 1).match(unhashed, *ONE_LEAF, max_ads=9)


def test_a_single_exclude_value_in_the_whole_catalogue_is_enforced() -> None:
    ads = [RawAd(1, (0,), 0.0, {"s": (None, frozenset({"no"}))}), RawAd(2, (0,))]
    snapshot = plain_snapshot(ONE_SET, (2,), ads)
    rows = UserEncoder(ONE_SET, snapshot.set_values).encode([{"s": ["no"]}, {"s": ["yes"]}])
    leaves = (np.array([0, 1, 2]), np.zeros(2, np.int32), np.zeros(2, np.float32))
    matched = ExactMatcher(snapshot, 1).match(rows, *leaves, max_ads=9)
    first, second = np.split(matched.ad_ids, matched.offsets[1:-1])
    assert (first.tolist(), second.tolist()) == ([2], [1, 2])
