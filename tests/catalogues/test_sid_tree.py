"""The SIDs: unique, sorted, in range, and with the fan-out of a real catalogue."""

import numpy as np
import pytest

from grace.catalogues.synth import Catalogue, CatalogueSpec, preset_spec
from grace.catalogues.synth.sid_tree import make_sid_tree
from grace.catalogues.synth.spec import Stream
from grace.catalogues.synth.topics import TOPICS
from grace.configs.errors import InputError


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


def test_the_tree_agrees_with_the_tokens(tiny: Catalogue, small: Catalogue) -> None:
    assert len(np.unique(small.tree.sids[:, 0])) == 504  # of 512: nearly all first tokens exist
    tree = tiny.tree
    for depth, parent in ((3, tree.sid_line), (2, tree.line_brand[tree.sid_line])):
        numbers = np.unique(tree.sids[:, :depth], axis=0, return_inverse=True)[1]
        assert np.array_equal(numbers.reshape(-1), parent)
    assert np.array_equal(tree.sid_topic, tree.sids[:, 0] * len(TOPICS) // 64)


@pytest.mark.parametrize("num_sids", [-1, 0, 63, 10**8])
def test_a_number_of_sids_that_cannot_be_is_refused_with_the_range(num_sids: int) -> None:
    with pytest.raises(InputError, match=f"--sids {num_sids} is outside 64 to 265420"):
        preset_spec("tiny", sids=num_sids)
    for vocab_sizes in ((63, 64, 64, 64), (64, 64, 64, 7), (64, 64, 65537, 64)):
        with pytest.raises(InputError, match="vocab_sizes"):
            CatalogueSpec("odd", 111, 1, vocab_sizes, seed=1)
