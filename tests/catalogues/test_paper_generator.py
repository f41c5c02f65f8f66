"""The stand-in for a model: the ads that its scores count, and its draws."""

import numpy as np
import pytest

from grace.catalogues.paper.catalogue import make_paper_catalogue
from grace.catalogues.paper.draws import Draws, Stream, normal_cdf, normal_quantile
from grace.catalogues.paper.generator import GeneratorKnobs, generator_of
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PaperSpec
from grace.index.snapshot import Snapshot


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    catalogue = make_paper_catalogue(PaperSpec(7_777, seed=5), threads=2)
    return paper_snapshot(catalogue, 2)


def test_the_ads_below_a_node_are_counted_at_every_level(snapshot: Snapshot) -> None:
    log_ads = generator_of(snapshot, Draws(7), GeneratorKnobs()).log_ads
    trie, below = snapshot.trie, np.exp(log_ads.astype(np.float64))
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
