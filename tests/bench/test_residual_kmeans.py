"""Residual k-means against plain loops, and the tokens that it makes."""

import numpy as np
import numpy.typing as npt
import pytest

from grace.catalogues.synth.residual_kmeans import residual_codes, seed_centres, settle, told_apart
from grace.configs.errors import InputError

Points = npt.NDArray[np.float64]


def points(size: int, dimension: int, seed: int) -> Points:
    return np.random.default_rng(seed).standard_normal((size, dimension))


def plain_lloyd(rows: Points, centres: Points) -> tuple[list[list[float]], list[int]]:
    """Lloyd's algorithm as a textbook says it, for centres that never run empty."""
    where: list[list[float]] = centres.tolist()
    labels: list[int] = []
    while True:
        found = []
        for row in rows.tolist():
            distances = [
                sum((a - b) ** 2 for a, b in zip(row, centre, strict=True)) for centre in where
            ]
            found.append(distances.index(min(distances)))
        if found == labels:
            return where, labels
        labels = found
        for c in range(len(where)):
            mine = [row for row, label in zip(rows.tolist(), labels, strict=True) if label == c]
            where[c] = [sum(column) / len(mine) for column in zip(*mine, strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_the_plain_loop(seed: int) -> None:
    rows = points(111, 5, seed)
    centres = seed_centres(rows, 7, np.random.default_rng(seed))
    clusters = settle(rows, centres)
    expected_centres, expected_labels = plain_lloyd(rows, centres)
    assert clusters.labels.tolist() == expected_labels
    np.testing.assert_allclose(clusters.centres, expected_centres, rtol=0, atol=1e-12)


def test_first_centres_are_different_points_and_spread_out() -> None:
    groups = np.repeat(np.eye(9) * 100, 7, axis=0) + points(63, 9, 1)
    centres = seed_centres(groups, 9, np.random.default_rng(1))
    assert {int(np.argmax(centre)) for centre in centres} == set(range(9))
    assert all((groups == centre).all(axis=1).any() for centre in centres)


def test_as_many_centres_as_points_leave_nothing_over() -> None:
    rows = points(63, 3, 2)
    clusters = settle(rows, seed_centres(rows, 63, np.random.default_rng(2)))
    assert sorted(clusters.labels.tolist()) == list(range(63))
    assert np.array_equal(clusters.centres[clusters.labels], rows)


def test_equal_points_share_the_lowest_label_and_do_no_harm() -> None:
    rows = np.ones((9, 3))
    clusters = settle(rows, seed_centres(rows, 4, np.random.default_rng(3)))
    assert clusters.labels.tolist() == [0] * 9


def test_a_centre_without_points_moves_to_the_point_that_is_worst_served() -> None:
    rows = np.array([[0.0], [1.0], [10.0], [11.0], [50.0]])
    clusters = settle(rows, np.array([[0.5], [10.5], [1000.0]]))
    assert clusters.labels.tolist() == [0, 0, 1, 1, 2]
    assert clusters.centres[:, 0].tolist() == [0.5, 10.5, 50.0]


def test_each_level_clusters_what_the_one_before_left_over() -> None:
    rows = points(333, 7, 4)
    codes = residual_codes(rows, (11, 9, 5), np.random.default_rng(4))
    rng = np.random.default_rng(4)
    left = rows
    for level, size in enumerate((11, 9, 5)):
        clusters = settle(left, seed_centres(left, size, rng))
        assert np.array_equal(codes[:, level], clusters.labels)
        before = np.square(left).sum()
        left = left - clusters.centres[clusters.labels]
        assert np.square(left).sum() < before


def test_fewer_items_than_clusters_are_refused() -> None:
    with pytest.raises(InputError, match="64 clusters of 63 items"):
        residual_codes(points(63, 3, 5), (64,), np.random.default_rng(5))


def test_equal_codes_are_told_apart_by_a_count_in_item_order() -> None:
    codes = np.array([[3, 1], [0, 2], [3, 1], [3, 0], [3, 1], [0, 2]])
    assert told_apart(codes, 3)[:, 2].tolist() == [0, 0, 1, 0, 2, 1]


def test_more_equal_codes_than_last_tokens_are_refused_with_the_remedy() -> None:
    codes = np.zeros((9, 3), np.int64)
    with pytest.raises(InputError, match=r"9 items have equal learned tokens.*has 8: .*fewer SIDs"):
        told_apart(codes, 8)
