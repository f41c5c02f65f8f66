"""K-way matchers from the builder against their definition in plain Python, array by array."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import InputError
from grace.index.builder.kway import checked_k_way
from grace.index.invariants import check_invariants
from grace.index.matchers.modes import DynamicKWay, KWay, MatcherMode, StaticKWay
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from support.arrays import assert_same_arrays
from support.builds import build_spec, built
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.plain_partitions import plain_k_way
from support.strategies import Case, random_ads, random_schema

STATIC, DYNAMIC = MatcherMode.STATIC, MatcherMode.DYNAMIC
modes = pytest.mark.parametrize("mode", [STATIC, DYNAMIC], ids=lambda mode: mode.value)


def built_with(folder: Path, case: Case, k_way: KWay | None) -> Snapshot:
    mode = {StaticKWay: STATIC, DynamicKWay: DYNAMIC}.get(type(k_way), MatcherMode.UNION)
    return built(build_spec(folder, case, mode=mode, k_way=k_way, threads=3))


def assert_built_as_defined(folder: Path, case: Case, k_way: KWay | None) -> Snapshot:
    snapshot = built_with(folder, case, k_way)
    plain = plain_snapshot(case.schema, case.vocab_sizes, case.ads, snapshot.mode, k_way=k_way)
    assert_same_arrays(snapshot, plain)
    check_invariants(snapshot)
    return snapshot


@modes
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5], ids=lambda n: f"L={n}")
def test_sids_of_any_length_build_the_plain_rows(
    tmp_path: Path, length: int, mode: MatcherMode
) -> None:
    rng = np.random.default_rng(length)
    schema = random_schema(rng, (33,), 1)
    vocab_sizes = (7, 5, 3, 2, 3)[:length]
    ads = tuple(random_ads(rng, schema, vocab_sizes, 111, ads_per_sid=1.1))
    case = Case(schema, vocab_sizes, ads, ())
    assert_built_as_defined(tmp_path, case, plain_k_way(mode, length))


@pytest.mark.parametrize(
    "k_way",
    [
        StaticKWay((1, 1)),
        StaticKWay((2, 8)),
        StaticKWay((64, 1)),
        StaticKWay((333, 3)),
        DynamicKWay(0, 1),
        DynamicKWay(0, 64),
        DynamicKWay(250_000, 32),
        DynamicKWay(500_000, 4),
        DynamicKWay(1_000_000, 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("rules", [5, 200], ids=lambda n: f"rules={n}")
def test_nodes_with_many_sids_build_the_plain_rows(tmp_path: Path, rules: int, k_way: KWay) -> None:
    """Rows come again and again, before and after the partition that took them has changed."""
    rng = np.random.default_rng(rules)
    schema = random_schema(rng, (65, 20), 1)
    models = random_ads(rng, schema, (3, 111), 2 * rules)
    ads = tuple(
        RawAd(i, sid, 0.0, models[int(rng.integers(len(models)))].rules)
        for i, sid in enumerate(product(range(3), range(111)))
    )
    assert_built_as_defined(tmp_path, Case(schema, (3, 111), ads, ()), k_way)


def rows_of_root_child(folder: Path, allowed: list[str], k_way: KWay) -> list[int]:
    """The partitions of (0,), below which the i-th SID's ad allows the i-th values of eight."""
    schema = TargetingSchema((Attribute("a", tuple("pqrstuvw")),), (), 0)
    ads = tuple(
        RawAd(i, (0, i), 0.0, {"a": (frozenset(values), None)}) for i, values in enumerate(allowed)
    )
    snapshot = assert_built_as_defined(folder, Case(schema, (1, 9), ads, ()), k_way)
    assert snapshot.matchers is not None
    bitmask = snapshot.matchers.bitmask
    begin, end = bitmask.ids_of_level(snapshot.trie, 1)
    return [int(row) for row in bitmask.table[bitmask.index[begin:end], 0]]


def test_sids_join_the_partition_that_stays_smallest_counted_by_hand(tmp_path: Path) -> None:
    """p and qr open the two; rs makes 3 bits with either, so the first; q is in the second."""
    rows = rows_of_root_child(tmp_path, ["p", "qr", "rs", "q"], StaticKWay((2, 1)))
    assert rows == [0b1101, 0b0110]


def test_a_row_inside_an_earlier_partition_leaves_the_empty_ones_empty(tmp_path: Path) -> None:
    """q makes 2 bits with pq, 1 alone; qr makes 2 alone and with q, which comes first."""
    rows = rows_of_root_child(tmp_path, ["pq", "q", "qr", "qr"], StaticKWay((4, 1)))
    assert rows == [0b011, 0b110, 0, 0]


def test_dynamic_stops_at_the_first_k_that_reaches_the_target(tmp_path: Path) -> None:
    """Eight values and `other`, nine bits: four SIDs of one bit each."""
    letters = ["p", "q", "r", "s"]
    found = {
        millionths: len(rows_of_root_child(tmp_path / str(millionths), letters, k_way))
        for millionths in (444_445, 444_444, 222_223, 222_222, 0)
        for k_way in [DynamicKWay(millionths, 8)]
    }
    assert found == {444_445: 1, 444_444: 2, 222_223: 2, 222_222: 4, 0: 4}


@pytest.mark.parametrize(
    ("mode", "k_way", "message"),
    [
        (STATIC, None, "matchers static: pass --k"),
        (STATIC, DynamicKWay(), "matchers static: pass --k"),
        (STATIC, StaticKWay((4, 2)), "--k 4,2: the SID length is 3; pass one number per token"),
        (DYNAMIC, StaticKWay((4, 2, 1)), "matchers dynamic: --k is for static"),
        (MatcherMode.UNION, DynamicKWay(), "matchers union: have no partitions"),
        (MatcherMode.CD, StaticKWay((1, 1, 1)), "matchers cd: have no partitions"),
    ],
)
def test_partitions_that_do_not_suit_the_mode_are_refused(
    mode: MatcherMode, k_way: KWay | None, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        checked_k_way(mode, k_way, 3)
    assert message in str(caught.value)


def test_dynamic_has_the_papers_target_by_default() -> None:
    assert checked_k_way(DYNAMIC, None, 4) == DynamicKWay(250_000, 32)
