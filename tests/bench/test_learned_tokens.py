"""The catalogue of the demonstration: SIDs learned from what the items are."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, preset_spec
from grace.catalogues.synth.folder import ADS_FILE, write_folder
from grace.catalogues.synth.log_file import make_log
from grace.catalogues.synth.sid_tree import make_sid_tree
from grace.catalogues.synth.spec import Stream
from grace.catalogues.synth.topics import TOPICS
from grace.catalogues.synth.users import make_users


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


def test_the_hierarchy_behind_the_items_is_the_one_before_learning(demo: Catalogue) -> None:
    plain = make_sid_tree(demo.spec, demo.spec.rng(Stream.SIDS))
    learned = np.column_stack([demo.tree.sid_line, demo.tree.sid_variant])
    before = np.column_stack([plain.sid_line, plain.sid_variant])
    assert np.array_equal(np.unique(learned, axis=0), np.unique(before, axis=0))
    assert len(np.unique(before, axis=0)) == 2000


def test_first_tokens_follow_topics_and_further_ones_brands_and_lines(demo: Catalogue) -> None:
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


def test_titles_below_a_prefix_of_two_tokens_are_of_one_topic(
    demo: Catalogue, tmp_path: Path
) -> None:
    write_folder(demo.spec, tmp_path)
    products = {product: topic.name for topic in TOPICS for product in topic.products}
    below: dict[tuple[int, ...], list[str]] = {}
    for row in pq.read_table(tmp_path / ADS_FILE, columns=["sid", "title"]).to_pylist():
        name = row["title"].partition(", ")[0].partition(" ")[2]
        below.setdefault(tuple(row["sid"][:2]), []).append(products[name])
    alike = sum(max(map(names.count, names)) for names in below.values())
    assert alike / sum(map(len, below.values())) > 0.97


def test_equal_seeds_learn_equal_tokens(demo: Catalogue) -> None:
    again = make_catalogue(preset_spec("demo", seed=3))
    other = make_catalogue(preset_spec("demo", seed=4))
    assert np.array_equal(again.tree.sids, demo.tree.sids)
    assert not np.array_equal(other.tree.sids, demo.tree.sids)


def test_clicks_of_requests_move_as_the_log_does(demo: Catalogue) -> None:
    """Steps stay within a topic as often, so a model of the log can continue them."""
    log = make_log(demo)
    within = log.event_user[1:] == log.event_user[:-1]
    topic = demo.tree.sid_topic
    logged = (topic[log.items[:-1]] == topic[log.items[1:]])[within].mean()
    clicks = [user.clicks for user in make_users(demo)]
    pairs = np.concatenate([np.column_stack([each[:-1], each[1:]]) for each in clicks])
    assert (topic[pairs[:, 0]] == topic[pairs[:, 1]]).mean() == pytest.approx(logged, abs=0.05)
    assert (pairs[:, 0] != pairs[:, 1]).mean() > 0.98
