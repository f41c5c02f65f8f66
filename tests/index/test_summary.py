"""The index summary against counting by hand."""

from statistics import mean

import pytest

from grace.configs.eligibility import DynamicKWay, MatcherMode
from grace.index.summary import summarize
from grace.index.targeting.schema import Attribute, Property, Range, TargetingSchema, TargetSet
from support.oracle import RawAd, Rule, Rules
from support.plain_builder import plain_snapshot

A: tuple[Rule, ...] = ((frozenset("p"), None), (frozenset("qr"), None), (frozenset("qr"), None))


def test_fill_is_the_mean_over_stored_partitions_of_set_bits_by_usable_bits() -> None:
    """Four values and `other`: five usable bits of the word's 64. Static has three partitions for a
    child of the root and four for a SID; the empty ones count."""
    schema = TargetingSchema((Attribute("a", ("p", "q", "r", "s")),), (), 0)
    sids = ((0, 0), (0, 1), (1, 0))
    ads = [RawAd(n, sid, 0.0, {"a": a}) for n, (sid, a) in enumerate(zip(sids, A, strict=True))]
    one, two = 1 / 5, 2 / 5
    none = [0.0] * 3
    for mode, k_way, *levels in (
        (MatcherMode.UNION, None, (2, 2, [3 / 5, two], 2), (3, 2, [one, two, two], 3)),
        (
            MatcherMode.STATIC,
            None,
            (6, 3, [one, two, 0, two, 0, 0], 6),
            (12, 3, [one, *none, two, *none, two, *none], 12),
        ),
        (
            MatcherMode.DYNAMIC,
            DynamicKWay(300_000, 4),
            (3, 2, [one, two, two], 3 + 2),
            (3, 2, [one, two, two], 3 + 3),
        ),
    ):
        snapshot = plain_snapshot(schema, (2, 2), ads, mode, k_way=k_way)
        for found, (partitions, rows, fills, ids) in zip(
            summarize(snapshot).matchers, levels, strict=True
        ):
            assert (found.partitions, found.rows, found.id_bytes) == (partitions, rows, 4 * ids)
            assert (found.bytes_before, found.bytes_after) == (8 * partitions, 8 * rows)
            assert found.fill == pytest.approx(mean(fills))
    of_levels = [(x.entries, x.mean_fan_out, x.max_fan_out) for x in summarize(snapshot).levels]
    assert of_levels == [(2, 2.0, 2), (3, 1.5, 2)]


def test_entities_are_counted_with_their_ads() -> None:
    schema = TargetingSchema((), (), 0, entities=("campaign", "advertiser"))
    sizes = [1] * 98 + [7, 40]
    campaigns = [campaign for campaign, size in enumerate(sizes) for _ in range(size)]
    ads = [RawAd(i, (0,), entities={"campaign": each}) for i, each in enumerate(campaigns)]
    ads += [RawAd(1000 + i, (1,)) for i in range(3)]
    campaign, advertiser = summarize(plain_snapshot(schema, (2,), ads)).entities
    assert (campaign.name, campaign.distinct, campaign.ads_without) == ("campaign", 100, 3)
    assert campaign.ads_per_entity == {"p50": 1, "p99": 7, "max": 40}
    assert (advertiser.distinct, advertiser.ads_without) == (0, len(ads))
    assert advertiser.ads_per_entity == {"p50": 0, "p99": 0, "max": 0}


def test_mode_exact_counts_the_distinct_rules_of_sids_and_the_posting_lists() -> None:
    """The rules of an alternative count one by one, and a group includes."""
    sets = TargetSet("s", 64, 2, 64), TargetSet("t", 64, 2, 64)
    schema = TargetingSchema((), sets, 0, ranges=(Range("r"),), properties=(Property("p"),))
    rules: list[Rules] = [
        {"s": (frozenset("ab"), frozenset("c"))},
        {"s_all": (frozenset("b"),)},
        {},
    ]
    ads = [RawAd(i, (0,), rules=rules[i % 3]) for i in range(7)]
    ads[1] = RawAd(1, (0,), clauses=(rules[1], {}))
    ads += [RawAd(10 + i, (1 + i,), rules={"p": frozenset("xy")}) for i in range(9)]
    summary = summarize(plain_snapshot(schema, (10,), ads, MatcherMode.EXACT))
    assert (summary.ads, summary.sids) == (16, 10)
    assert summary.ads_per_sid == {"p50": 1, "p90": 1, "p99": 7, "max": 7}
    assert (summary.rules, summary.alternatives) == (4, 1)
    assert summary.rule_rows == {"s": 3, "t": 1, "r": 1, "p": 2}
    assert (summary.groups, summary.values) == ({"s": 1, "t": 0}, {"s": 3, "t": 0, "p": 2})
    exact = summary.exact
    assert exact is not None
    assert exact.rules_per_sid == {"p50": 1, "p90": 1, "p99": 3, "max": 3}
    assert (exact.leaf_rules, exact.leaf_rule_bytes) == (9 + 3, 4 * (9 + 3) + 4 * 11)
    s, t, p = exact.postings
    assert (s.name, s.values, s.include_entries, s.exclude_entries) == ("s", 3, 3, 1)
    assert s.bytes == 2 * 8 * 4 + 4 * 4
    assert (t.name, t.values, t.include_entries, t.exclude_entries) == ("t", 0, 0, 0)
    assert (p.name, p.values, p.include_entries, p.bytes) == ("p", 2, 2, 8 * 3 + 4 * 2)
