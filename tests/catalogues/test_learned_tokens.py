"""Learned SIDs: their numbers, and the demonstration's catalogue."""

import numpy as np
import numpy.typing as npt
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, make_users, preset_spec
from grace.catalogues.synth.learned_tokens import number_duplicates
from grace.catalogues.synth.log_file import make_log
from grace.configs.errors import InputError


def test_more_equal_codes_than_last_tokens_are_refused_with_the_remedy() -> None:
    codes = np.zeros((9, 3), np.int64)
    with pytest.raises(InputError, match=r"9 items have equal learned tokens.*has 8: .*fewer SIDs"):
        number_duplicates(codes, 8)


@pytest.fixture(scope="module")
def demo() -> Catalogue:
    return make_catalogue(preset_spec("demo", seed=3))


def purity(sids: npt.NDArray[np.uint16], depth: int, kind: npt.NDArray[np.int64]) -> float:
    """The share of SIDs that are of the commonest kind below their prefix."""
    prefix = np.unique(sids[:, :depth], axis=0, return_inverse=True)[1].reshape(-1)
    pairs, counts = np.unique(np.column_stack([prefix, kind]), axis=0, return_counts=True)
    return float(
        np.maximum.reduceat(counts, np.unique(pairs[:, 0], return_index=True)[1]).sum()
    ) / len(sids)


def test_learned_sids_are_unique_and_follow_topics_then_brands_then_lines(demo: Catalogue) -> None:
    tree = demo.tree
    assert np.array_equal(tree.sids, np.unique(tree.sids, axis=0))
    assert (len(tree.sids), int(tree.sids.max())) == (2000, 63)
    brand = tree.line_brand[tree.sid_line]
    assert purity(tree.sids, 1, tree.sid_topic) > 0.8
    assert purity(tree.sids, 2, tree.sid_topic) > 0.98
    assert purity(tree.sids, 2, brand) > 0.8
    assert purity(tree.sids, 3, tree.sid_line) > 0.9


def test_clicks_of_requests_follow_the_same_process_as_the_log(demo: Catalogue) -> None:
    """Steps stay within a topic equally often, so a model of the log can continue them."""
    log = make_log(demo)
    within = log.event_user[1:] == log.event_user[:-1]
    topic = demo.tree.sid_topic
    logged = (topic[log.items[:-1]] == topic[log.items[1:]])[within].mean()
    clicks = [user.clicks for user in make_users(demo)]
    pairs = np.concatenate([np.column_stack([each[:-1], each[1:]]) for each in clicks])
    assert (topic[pairs[:, 0]] == topic[pairs[:, 1]]).mean() == pytest.approx(logged, abs=0.05)
    assert (pairs[:, 0] != pairs[:, 1]).mean() > 0.98
