"""Recall, its rules and popularity, on examples made by hand; the model's ranks by definition."""

import math

import numpy as np
import pytest

from grace.model.train.evaluate import (
    ABSENT,
    Followers,
    Popularity,
    quality,
)
from grace.model.train.interactions import Interactions


def interactions(histories: list[list[int]], held_out: list[bool]) -> Interactions:
    """Users with these leaves, one after another."""
    leaves = np.array([leaf for history in histories for leaf in history])
    return Interactions(
        offsets=np.cumsum([0, *map(len, histories)]),
        user_ids=np.arange(len(histories)),
        held_out=np.repeat(held_out, [len(history) for history in histories]),
        leaves=leaves,
        leaf_sids=np.arange(leaves.max() + 1, dtype=np.uint16)[:, np.newaxis],
        times_ms=np.arange(len(leaves)),
    )


LOG = interactions(
    [[4, 2, 4, 2, 0], [4, 3, 4, 3, 4, 3], [1, 2], [4, 2], [0, 1], [3, 0]],
    [False, False, False, True, True, True],
)


ALL = np.ones((5, 5), np.bool_)


def test_training_sees_successive_events_of_one_user_and_measures_users_with_a_history() -> None:
    pairs = [(4, 2), (2, 4), (4, 2), (2, 0), (4, 3), (3, 4), (4, 3), (3, 4), (4, 3), (1, 2)]
    assert [*map(tuple, LOG.transitions().tolist())] == pairs
    assert interactions([[1], [2, 3]], [True, True]).last_events().tolist() == [2]


def test_recall_at_k_is_the_share_of_ranks_below_k() -> None:
    ranks = np.array([0, 4, 5, 9, 10, 49, ABSENT, ABSENT])
    assert quality(ranks).recall == {1: 1 / 8, 5: 2 / 8, 10: 4 / 8, 50: 6 / 8}


def test_ndcg_at_k_is_the_mean_of_the_discounted_ranks_below_k() -> None:
    ranks = np.array([0, 4, 5, 2, ABSENT])
    gains = [1 / math.log2(2), 1 / math.log2(6), 1 / math.log2(7), 1 / math.log2(4)]
    found = quality(ranks, (1, 5, 10)).ndcg
    assert found[1] == pytest.approx(gains[0] / 5)
    assert found[5] == pytest.approx((gains[0] + gains[1] + gains[3]) / 5)
    assert found[10] == pytest.approx(sum(gains) / 5)


def test_popularity_ranks_by_training_counts_and_ties_by_leaf() -> None:
    assert LOG.leaf_counts(5).tolist() == [1, 1, 3, 3, 5]
    popularity = Popularity.of(LOG, 5)
    for every in (ALL, None):
        assert popularity.ranks(np.arange(5), every).tolist() == [3, 4, 1, 2, 0]
    not_2 = np.array([[True, True, False, True, True]] * 2)
    assert popularity.ranks(np.array([0, 3]), not_2).tolist() == [2, 1]


def test_followers_rank_by_how_often_they_came_next_in_training() -> None:
    events = LOG.last_events()
    assert LOG.leaves[events].tolist() == [2, 1, 0]
    # After 4 came 3 three times and 2 twice; nothing ever came after 0; after 3 only 4 came.
    followers = Followers.of(LOG)
    last, truth = LOG.leaves[events - 1], LOG.leaves[events]
    for every in (ALL, None):
        assert followers.ranks(last, truth, every).tolist() == [1, ABSENT, ABSENT]
    after_4 = np.array([4, 4]), np.array([2, 2])
    all_or_not_3 = np.array([[True] * 5, [True, True, True, False, True]])
    assert followers.ranks(*after_4, all_or_not_3).tolist() == [1, 0]
