"""What decoding reads, derived in every mode, against its definition in plain Python."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import CD, DynamicKWay, Eligibility, KWay, MatcherMode, StaticKWay
from grace.configs.errors import ConfigError, InputError
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from support.arrays import assert_same_arrays
from support.oracle import RawAd
from support.plain_builder import plain_k_way, plain_snapshot
from support.strategies import Case, cases, examples, random_ads, random_case, random_schema


def assert_derived_as_defined(case: Case, eligibility: Eligibility, threads: int = 3) -> Snapshot:
    """From the facts alone, of which the plain builder makes no array again."""
    mode, k_way = eligibility.mode, eligibility.k_way
    plain = plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode, k_way=k_way)
    snapshot = derive(derive(plain, CD, 1), eligibility, threads)
    assert_same_arrays(snapshot, plain)
    return snapshot


def with_k_way(k_way: KWay) -> Eligibility:
    mode = MatcherMode.STATIC if isinstance(k_way, StaticKWay) else MatcherMode.DYNAMIC
    return Eligibility(mode, k_way)


@pytest.mark.parametrize("mode", MatcherMode, ids=lambda mode: mode.value)
@given(case=cases(), threads=st.sampled_from([1, 2, 5]))
@examples(20)
def test_every_mode_is_derived_as_it_is_defined(
    mode: MatcherMode, case: Case, threads: int
) -> None:
    k_way = plain_k_way(mode, len(case.vocab_sizes))
    assert_derived_as_defined(case, Eligibility(mode, k_way), threads)


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
def test_nodes_with_many_sids_have_the_plain_rows(rules: int, k_way: KWay) -> None:
    """Rows come again and again, before and after the partition that took them has changed."""
    rng = np.random.default_rng(rules)
    schema = random_schema(rng, (65, 20), 1)
    models = random_ads(rng, schema, (3, 111), 2 * rules)
    ads = tuple(
        RawAd(i, sid, 0.0, models[int(rng.integers(len(models)))].rules)
        for i, sid in enumerate(product(range(3), range(111)))
    )
    assert_derived_as_defined(Case(schema, (3, 111), ads, ()), with_k_way(k_way))


@pytest.mark.parametrize(
    ("millionths", "partitions"), [(444_445, 1), (444_444, 2), (222_223, 2), (222_222, 4), (0, 4)]
)
def test_dynamic_stops_at_the_first_k_that_reaches_the_target(
    millionths: int, partitions: int
) -> None:
    """Eight values and `other`, nine bits: the node (0,) has four SIDs of one bit each."""
    schema = TargetingSchema((Attribute("a", tuple("pqrstuvw")),), (), 0)
    ads = tuple(RawAd(i, (0, i), 0.0, {"a": (frozenset(x), None)}) for i, x in enumerate("pqrs"))
    case, k_way = Case(schema, (1, 9), ads, ()), DynamicKWay(millionths, 8)
    snapshot = assert_derived_as_defined(case, with_k_way(k_way))
    assert snapshot.matchers is not None
    begin, end = snapshot.matchers.bitmask.borders(snapshot.trie)[:2]
    assert end - begin == partitions


@pytest.mark.parametrize("threads", [1, 3])
def test_static_ids_that_do_not_fit_are_refused(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.index.snapshot.MAX_ID", 99)
    case = random_case(np.random.default_rng(0), 63)
    facts = plain_snapshot(case.schema, case.vocab_sizes, case.ads, MatcherMode.CD)
    widths = (9,) * len(case.vocab_sizes)
    with pytest.raises(InputError, match="ids of static matchers, a snapshot holds at most"):
        derive(facts, Eligibility(MatcherMode.STATIC, StaticKWay(widths)), threads)


def test_partitions_of_another_sid_length_are_refused() -> None:
    facts = plain_snapshot(TargetingSchema((), (), 0), (2, 3, 4), [RawAd(1, (0, 0, 0))])
    with pytest.raises(ConfigError, match=r"static:4,2: the SID length is 3; give one number per"):
        derive(facts, Eligibility.of("static:4,2"), 1)
