"""Learned SIDs: residual k-means against plain loops, and the demonstration's catalogue."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, make_users, preset_spec
from grace.catalogues.synth.files import write_ads
from grace.catalogues.synth.learned_tokens import (
    number_duplicates,
    residual_codes,
    seed_centres,
    settle,
)
from grace.catalogues.synth.log_file import make_log
from grace.catalogues.synth.sid_tree import make_sid_tree
from grace.catalogues.synth.spec import Stream
from grace.catalogues.synth.topics import TOPICS
from grace.configs.errors import InputError

Points = npt.NDArray[np.float64]


def points(size: int, dimension: int, seed: int) -> Points:
    return np.random.default_rng(seed).standard_normal((size, dimension))


def plain_lloyd(rows: Points, centres: Points) -> tuple[list[list[float]], list[int]]:
    """Lloyd's algorithm as in a textbook, for centres that never run empty."""
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


def test_with_as_many_centres_as_points_nothing_is_left_over() -> None:
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


def test_each_level_clusters_the_residuals_of_the_one_before() -> None:
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


def test_a_last_token_counts_equal_codes_in_item_order() -> None:
    codes = np.array([[3, 1], [0, 2], [3, 1], [3, 0], [3, 1], [0, 2]])
    assert number_duplicates(codes, 3)[:, 2].tolist() == [0, 0, 1, 0, 2, 1]


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


def test_learned_sids_are_unique_ascending_and_in_range(demo: Catalogue) -> None:
    sids = demo.tree.sids
    assert sids.shape == (2000, 4)
    assert np.array_equal(sids, np.unique(sids, axis=0))
    assert sids.max() < 64


def test_learning_renames_items_and_keeps_their_hierarchy(demo: Catalogue) -> None:
    plain = make_sid_tree(demo.spec, demo.spec.rng(Stream.SIDS))
    learned = np.column_stack([demo.tree.sid_line, demo.tree.sid_variant])
    before = np.column_stack([plain.sid_line, plain.sid_variant])
    assert np.array_equal(np.unique(learned, axis=0), np.unique(before, axis=0))
    assert len(np.unique(before, axis=0)) == 2000


def test_first_tokens_follow_topics_and_later_ones_brands_and_lines(demo: Catalogue) -> None:
    tree = demo.tree
    brand = tree.line_brand[tree.sid_line]
    assert purity(tree.sids, 1, tree.sid_topic) > 0.8
    assert purity(tree.sids, 2, tree.sid_topic) > 0.98
    assert purity(tree.sids, 2, brand) > 0.8
    assert purity(tree.sids, 3, tree.sid_line) > 0.9


def test_fan_out_narrows_as_in_a_real_catalogue(demo: Catalogue) -> None:
    prefixes = [len(np.unique(demo.tree.sids[:, :depth], axis=0)) for depth in (1, 2, 3, 4)]
    assert prefixes[0] == 64
    assert 5 < prefixes[1] / prefixes[0] < 20
    assert prefixes[2] > 1.2 * prefixes[1]
    assert 2 < prefixes[3] / prefixes[2] < 4


def test_ads_below_a_prefix_of_two_tokens_share_a_topic(demo: Catalogue, tmp_path: Path) -> None:
    write_ads(demo, tmp_path / "ads.parquet")
    products = {product: topic.name for topic in TOPICS for product in topic.products}
    below: dict[tuple[int, ...], list[str]] = {}
    for row in pq.read_table(tmp_path / "ads.parquet", columns=["sid", "title"]).to_pylist():
        name = row["title"].partition(", ")[0].partition(" ")[2]
        below.setdefault(tuple(row["sid"][:2]), []).append(products[name])
    alike = sum(max(map(names.count, names)) for names in below.values())
    assert alike / sum(map(len, below.values())) > 0.97


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
