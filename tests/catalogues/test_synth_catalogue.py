"""Ads and their targeting: ads per SID as in the paper, stated shares, rules that follow SIDs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from grace.catalogues.synth import (
    Catalogue,
    CatalogueSpec,
    make_catalogue,
    make_users,
    preset_spec,
)
from grace.catalogues.synth.learned_tokens import number_duplicates
from grace.catalogues.synth.log_file import make_log
from grace.catalogues.synth.rules import NO_RULE, OPEN_CAMPAIGN
from grace.catalogues.synth.schema import RULE_COLUMNS
from grace.catalogues.synth.sid_tree import make_sid_tree
from grace.catalogues.synth.spec import Stream
from grace.configs.errors import InputError


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


@pytest.mark.parametrize("vocab_sizes", [(64, 64, 64, 64), (64, 63, 111, 8), (128, 8, 9, 65)])
@pytest.mark.parametrize("num_sids", [64, 2063])
def test_sids_are_as_many_as_asked_sorted_unique_and_in_range(
    vocab_sizes: tuple[int, int, int, int], num_sids: int
) -> None:
    spec = CatalogueSpec("odd", num_sids, 1, vocab_sizes, seed=5)
    sids = make_sid_tree(spec, spec.rng(Stream.SIDS)).sids
    assert sids.shape == (num_sids, 4)
    assert np.array_equal(sids, np.unique(sids, axis=0))
    assert (sids.max(axis=0) < vocab_sizes).all()


@pytest.mark.parametrize("num_sids", [-1, 0, 63, 10**8])
def test_a_number_of_sids_that_cannot_be_is_refused_with_the_range(num_sids: int) -> None:
    with pytest.raises(InputError, match=f"--sids {num_sids} is outside 64 to 265420"):
        preset_spec("tiny", sids=num_sids)
    for vocab_sizes in ((63, 64, 64, 64), (64, 64, 64, 7), (64, 64, 65537, 64)):
        with pytest.raises(InputError, match="vocab_sizes"):
            CatalogueSpec("odd", 111, 1, vocab_sizes, seed=1)


def test_more_equal_codes_than_last_tokens_are_refused_with_the_remedy() -> None:
    codes = np.zeros((9, 3), np.int64)
    with pytest.raises(InputError, match=r"9 items have equal learned tokens.*has 8: .*fewer SIDs"):
        number_duplicates(codes, 8)


def test_clicks_of_requests_follow_the_same_process_as_the_log() -> None:
    """Steps stay within a topic equally often, so a model of the log can continue them."""
    demo = make_catalogue(preset_spec("demo", seed=3))
    log = make_log(demo)
    within = log.event_user[1:] == log.event_user[:-1]
    topic = demo.tree.sid_topic
    logged = (topic[log.items[:-1]] == topic[log.items[1:]])[within].mean()
    clicks = [user.clicks for user in make_users(demo)]
    pairs = np.concatenate([np.column_stack([each[:-1], each[1:]]) for each in clicks])
    assert (topic[pairs[:, 0]] == topic[pairs[:, 1]]).mean() == pytest.approx(logged, abs=0.05)
    assert (pairs[:, 0] != pairs[:, 1]).mean() > 0.98
