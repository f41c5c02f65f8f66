"""Ads and their targeting: ads per SID as in the paper, stated shares, rules that follow SIDs."""

import numpy as np
import pytest

from grace.catalogues.synth import Catalogue, CatalogueSpec, preset_spec
from grace.catalogues.synth.learned_tokens import number_duplicates
from grace.catalogues.synth.rules import NO_RULE, OPEN_CAMPAIGN
from grace.catalogues.synth.sid_tree import make_sid_tree
from grace.catalogues.synth.spec import RULE_COLUMNS, Stream
from grace.configs.errors import InputError


def share_with_rule(catalogue: Catalogue, name: str) -> float:
    (column,) = [each for each in catalogue.campaigns.columns if each.name == name]
    choice = column.choice[catalogue.ad_campaigns]
    return float((choice != NO_RULE).mean())


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


def test_more_equal_codes_than_last_tokens_are_refused_with_the_remedy() -> None:
    codes = np.zeros((9, 3), np.int64)
    with pytest.raises(InputError, match=r"9 items have equal learned tokens.*has 8: .*fewer SIDs"):
        number_duplicates(codes, 8)
