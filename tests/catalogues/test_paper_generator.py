"""The stand-in for a model searches as GRACE does, and only where the test admits it."""

import numpy as np
import pytest

from grace.catalogues.paper.catalogue import make_paper_catalogue
from grace.catalogues.paper.draws import Draws, Stream, normal_cdf, normal_quantile
from grace.catalogues.paper.generator import (
    Generator,
    GeneratorKnobs,
    admit_for,
    every_entry,
    generator_of,
)
from grace.catalogues.paper.population import make_users
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PaperSpec
from grace.configs.eligibility import Eligibility, MatcherMode
from grace.index.matchers.admission import admitted_entries
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder, UserRows

BEAMS, NUM_SIDS = (1, 7, 15, 63), 111


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    catalogue = make_paper_catalogue(PaperSpec(7_777, seed=5), threads=2)
    return derive(paper_snapshot(catalogue, 2), Eligibility(MatcherMode.UNION), threads=2)


@pytest.fixture(scope="module")
def users(snapshot: Snapshot) -> UserRows:
    made = make_users(5, Draws(5), PaperSpec().knobs)
    return UserEncoder(snapshot.schema, snapshot.set_values).encode(made)


def generator(snapshot: Snapshot) -> Generator:
    return generator_of(snapshot, Draws(7), GeneratorKnobs())


def test_the_search_follows_the_trie_from_beam_to_beam(snapshot: Snapshot) -> None:
    found = generator(snapshot).generate(3, every_entry, BEAMS, NUM_SIDS)
    assert found.alive == (7, 15, 63, 111)
    assert len(np.unique(found.leaves)) == NUM_SIDS
    assert (np.diff(found.scores) <= 0).all()
    sids = snapshot.trie.sids(found.leaves)
    for length, most in ((1, 7), (2, 15), (3, 63)):
        assert len(np.unique(sids[:, :length], axis=0)) <= most


def test_beams_wider_than_the_catalogue_score_every_sid_with_a_probability(
    snapshot: Snapshot,
) -> None:
    leaves = snapshot.trie.num_leaves
    found = generator(snapshot).generate(2, every_entry, (1, leaves, leaves, leaves), leaves)
    assert sorted(found.leaves.tolist()) == list(range(leaves))
    assert np.exp(found.scores.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("request_number", range(2))
def test_only_admitted_nodes_are_on_the_path_to_a_generated_sid(
    snapshot: Snapshot, users: UserRows, request_number: int
) -> None:
    admit = admit_for(snapshot, users, request_number)
    found = generator(snapshot).generate(request_number, admit, BEAMS, NUM_SIDS)
    admitted = admitted_entries(snapshot, users, request_number)
    for sid in snapshot.trie.sids(found.leaves).tolist():
        for length in (1, 2, 3, 4):
            node = snapshot.trie.walk(tuple(sid[:length]))
            assert admitted[node - 1]


def test_popular_sids_are_generated_more_than_their_share(snapshot: Snapshot) -> None:
    sizes = np.diff(snapshot.ads.ad_offsets)
    found = [generator(snapshot).generate(user, every_entry, BEAMS, NUM_SIDS) for user in range(33)]
    assert np.mean([sizes[one.leaves].mean() for one in found]) > 1.5 * sizes.mean()


def test_the_ads_below_a_node_are_counted_at_every_level(snapshot: Snapshot) -> None:
    trie, below = snapshot.trie, np.exp(generator(snapshot).log_ads.astype(np.float64))
    assert below[0] == pytest.approx(snapshot.ads.num_ads, rel=1e-6)
    for node in (0, 1, 7, trie.level_starts[2], trie.level_starts[3] + 5):
        children = trie.children(node)[1]
        assert below[node] == pytest.approx(below[list(children)].sum(), rel=1e-5)


def test_draws_are_uniform_and_normal_and_their_streams_apart() -> None:
    draws, keys = Draws(11), np.arange(200_001)
    uniform, normal = draws.uniform(Stream.USER, keys), draws.normal(Stream.TASTE, keys)
    assert (uniform.min() >= 0, uniform.max() < 1) == (True, True)
    assert uniform.mean() == pytest.approx(0.5, abs=0.005)
    assert (normal.mean(), normal.std()) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))
    other = draws.uniform(Stream.TASTE, keys)
    assert np.corrcoef(uniform, other)[0, 1] == pytest.approx(0, abs=0.01)
    assert np.corrcoef(uniform[1:], uniform[:-1])[0, 1] == pytest.approx(0, abs=0.01)
    assert np.quantile(normal_cdf(normal), 0.25) == pytest.approx(0.25, abs=0.01)
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-4)
