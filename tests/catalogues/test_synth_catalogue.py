"""Ads and their targeting: ads per SID as in the paper, stated shares, rules that follow SIDs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from grace.catalogues.synth import (
    Catalogue,
    CatalogueSpec,
    TargetingKnobs,
    make_catalogue,
)
from grace.catalogues.synth.places import COUNTRIES
from grace.catalogues.synth.rules import NO_RULE, OPEN_CAMPAIGN
from grace.catalogues.synth.schema import MAX_REQUEST_VALUES, RULE_COLUMNS, SCHEMA


def share_with_rule(catalogue: Catalogue, name: str) -> float:
    choice = catalogue.campaigns.column(name).choice[catalogue.ad_campaigns]
    return float((choice != NO_RULE).mean())


def entropy(values: npt.NDArray[Any]) -> float:
    """The entropy of the distribution of values, in bits."""
    counts = np.unique(values, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def test_ads_per_sid_have_the_papers_percentiles(small: Catalogue, tiny: Catalogue) -> None:
    for catalogue in (small, tiny):
        per_sid = np.diff(catalogue.ad_offsets)
        assert per_sid.min() == 1
        assert np.percentile(per_sid, [50, 90, 99]).tolist() == [1, 2, 11]
        assert per_sid.mean() == pytest.approx(1.68, abs=0.02)


SHARES = {
    "country": 0.60, "country_exclude": 0.04, "device": 0.15, "language": 0.30, "location": 0.40,
    "location_exclude": 0.05, "audience": 0.10, "audience_exclude": 0.03,
}  # fmt: skip
"""Those of the knobs."""


def test_the_share_of_ads_with_a_rule_is_the_knob_s(tiny: Catalogue, small: Catalogue) -> None:
    for catalogue in (tiny, small):
        assert tuple(column.name for column in catalogue.campaigns.columns) == RULE_COLUMNS
        for name in RULE_COLUMNS:
            assert share_with_rule(catalogue, name) > 0, name
    for name, share in SHARES.items():
        assert share_with_rule(small, name) == pytest.approx(share, abs=0.05, rel=0.3), name
    assert small.campaigns.rule(OPEN_CAMPAIGN) == {}
    assert (small.ad_campaigns == OPEN_CAMPAIGN).mean() == pytest.approx(0.03, abs=0.005)


def test_lists_are_distinct_and_hold_distinct_known_values(tiny: Catalogue) -> None:
    known = {attribute.name: set(attribute.values) for attribute in SCHEMA.attributes}
    for column in tiny.campaigns.columns:
        used = np.unique(column.choice[column.choice != NO_RULE])
        lists = [tuple(column.lists.strings(index)) for index in used]
        assert len(set(lists)) == len(lists), column.name
        for values in lists:
            assert 0 < len(set(values)) == len(values) <= MAX_REQUEST_VALUES
            assert set(values) <= known.get(column.name.removesuffix("_exclude"), set(values))


def test_knobs_of_0_and_1_give_a_rule_to_no_ad_and_to_every_ad() -> None:
    drawn = [name for name in RULE_COLUMNS if name != "age_exclude"]  # that one has no knob
    none = TargetingKnobs(**dict.fromkeys(drawn, 0.0), age_if_leaning=0.0, gender_if_leaning=0.0)
    bare = make_catalogue(CatalogueSpec("none", 111, 3, (64, 64, 64, 64), 1, none))
    assert all(share_with_rule(bare, name) == 0 for name in drawn)
    full = TargetingKnobs(
        country=1.0, country_if_located=1.0, location=1.0, audience=1.0, open_ads=0.0
    )
    dense = make_catalogue(CatalogueSpec("full", 111, 3, (64, 64, 64, 64), 1, full))
    assert all(share_with_rule(dense, n) == 1 for n in ("country", "location", "audience"))


def test_include_minus_exclude_is_never_empty(tiny: Catalogue, small: Catalogue) -> None:
    for catalogue in (tiny, small):
        for campaign in range(0, len(catalogue.campaigns), 3):
            rule = catalogue.campaigns.rule(campaign)
            for attribute in SCHEMA.attributes:
                allowed = set(rule.get(attribute.name, attribute.values))
                assert allowed - set(rule.get(f"{attribute.name}_exclude", ())), rule


@pytest.mark.parametrize("name", ["country", "location", "language"])
def test_rules_below_one_three_token_prefix_are_alike(small: Catalogue, name: str) -> None:
    """The entropy of the rule within a product line is far below that of the whole catalogue."""
    choice = small.campaigns.column(name).choice[small.ad_campaigns]
    line = small.tree.sid_line[small.ad_sids]
    ads_in_line = np.bincount(line)
    busy = np.flatnonzero(ads_in_line >= 11)[:300]
    starts = np.searchsorted(line, busy)
    within = [
        entropy(choice[start : start + ads_in_line[each]])
        for each, start in zip(busy, starts, strict=True)
    ]
    assert len(within) == 300
    assert float(np.mean(within)) < 0.35 * entropy(choice)


def test_a_location_list_lies_in_the_home_country(tiny: Catalogue) -> None:
    column = tiny.campaigns.column("location")
    countries = tiny.places.city_country[tiny.campaigns.city]
    for campaign in np.flatnonzero(column.choice != NO_RULE):
        home = COUNTRIES[countries[campaign]].code.lower()
        values = column.lists.strings(column.choice[campaign])
        assert {value.partition("/")[0] for value in values} == {home}
