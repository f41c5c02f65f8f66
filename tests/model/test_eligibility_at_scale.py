"""No ineligible ad is returned, and no eligible ad is lost while decoding: in every mode, at scale.

The truth comes from the raw table. CI asks about thousands of SIDs, `make soak` about a million.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.snapshot import Snapshot
from grace.kernels import DecodeIndex, Ops, UserTensors, load_ops
from grace.model.definition.spec import DecoderSpec
from support.models import random_decoder
from support.raw_catalogue import Kind, RawCatalogue, Scale
from support.watched_search import CPU, Searcher, Tally

BATCH = 16
SMALL = Scale(sids=3333, rules=177, users=55, vocab_sizes=(11, 17, 29))
LARGE = Scale(sids=1_000_000, rules=2503, users=1013, vocab_sizes=(127, 127, 131))
NARROW, WIDE = BeamProfile((1, 9, 57), 63), BeamProfile((1, 64, 256), 256)
WHOLE = BeamProfile((1, 11, 187), 3333)  # all prefixes of SMALL: a fault has no place to hide
KINDS = {
    "attributes": Kind((1, 63, 64, 250), 0, rules_follow_sids=True, least_includes=1),
    "sets": Kind((), 3, rules_follow_sids=False, least_includes=2),
    "both-following": Kind((5, 65), 2, rules_follow_sids=True, least_includes=1),
    "both-scattered": Kind((5, 65), 2, rules_follow_sids=False),
}
DECODER = DecoderSpec(layers=1, d_model=8, heads=1, d_head=8, d_ff=8)

all_modes = pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest) -> RawCatalogue:
    return RawCatalogue.make(KINDS[request.param], SMALL, 3)


@pytest.fixture(scope="module", params=KINDS)
def large(request: pytest.FixtureRequest) -> RawCatalogue:
    return RawCatalogue.make(KINDS[request.param], LARGE, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RawCatalogue], Path]:
    """Return the folder of a catalogue, whose modes share the table."""
    folders: dict[RawCatalogue, Path] = {}

    def folder_of(catalogue: RawCatalogue) -> Path:
        if catalogue not in folders:
            folders[catalogue] = tmp_path_factory.mktemp("catalogue")
        return folders[catalogue]

    return folder_of


def searcher(
    catalogue: RawCatalogue,
    snapshot: Snapshot,
    profile: BeamProfile = NARROW,
    ops: Ops | None = None,
) -> Searcher:
    decoder = random_decoder(DECODER, catalogue.vocab_sizes, 4, 1)
    return Searcher(catalogue, snapshot, decoder, profile, ops or load_ops(CPU))


def compare_all_users(searcher: Searcher, size: int = BATCH) -> Tally:
    """Search for every user, in batches; every other batch has a tenth of the ads stopped."""
    catalogue, rng = searcher.catalogue, np.random.default_rng(7)
    none = np.zeros(len(catalogue.sid), np.bool_)
    for batch, first in enumerate(range(0, len(catalogue.users), size)):
        stopped = catalogue.some_stopped(rng) if batch % 2 else None
        searcher.stop(none if stopped is None else stopped)
        searcher.write_stops()
        last = min(first + size, len(catalogue.users))
        searcher.search(range(first, last), stopped, seed=batch)
    return searcher.tally


def assert_promises_kept(tally: Tally, mode: MatcherMode, catalogue: RawCatalogue) -> None:
    users = len(catalogue.users)
    assert tally.found() == {}
    if mode is MatcherMode.EXACT:
        assert tally.inexact == {"candidates": 0, "sids": 0}
        assert tally.full <= tally.enough
    assert tally.users == users
    assert tally.full > users // 9, "a test of full beams needs some"
    assert tally.ads > users


@all_modes
def test_every_step_of_thousands_of_sids_keeps_the_promises(
    small: RawCatalogue, mode: MatcherMode, folder: Callable[[RawCatalogue], Path]
) -> None:
    snapshot = small.snapshot(folder(small), mode)
    tally = compare_all_users(searcher(small, snapshot), size=21)
    assert_promises_kept(tally, mode, small)


@pytest.mark.soak
@all_modes
def test_every_step_of_a_million_sids_keeps_the_promises(
    large: RawCatalogue, mode: MatcherMode, folder: Callable[[RawCatalogue], Path]
) -> None:
    begin = perf_counter()
    snapshot = large.snapshot(folder(large), mode)
    built_at = perf_counter()
    tally = compare_all_users(searcher(large, snapshot, WIDE))
    seconds = f"built in {built_at - begin:.0f} s, searched in {perf_counter() - built_at:.0f} s"
    print(f"\n{mode.value}: {seconds}: {tally}")
    assert_promises_kept(tally, mode, large)
    if mode is MatcherMode.EXACT:
        # The ads of each rule spread over many first tokens, so 64 beams lead to enough of them.
        assert tally.full == tally.enough


@pytest.mark.parametrize("was_set", [True, False], ids=["cleared", "set"])
def test_one_wrong_bit_of_a_mask_is_found(
    was_set: bool, folder: Callable[[RawCatalogue], Path]
) -> None:
    """The comparison finds what it looks for; tests/mutations has faults of the code itself."""
    catalogue = RawCatalogue.make(KINDS["both-scattered"], SMALL, 3)
    snapshot = catalogue.snapshot(folder(catalogue), MatcherMode.EXACT)
    native = load_ops(CPU)

    def one_wrong_bit(users: UserTensors, index: DecodeIndex) -> Tensor:
        masks = native.eligible_nodes(users, index)
        leaves = masks[0, index.first_leaf :]
        place = int(((leaves >> 3 & 1) == was_set).nonzero()[71])
        leaves[place] ^= 1 << 3
        return masks

    found = searcher(catalogue, snapshot, WHOLE, replace(native, eligible_nodes=one_wrong_bit))
    found.search(range(BATCH), None, seed=1)
    if was_set:
        assert found.tally.found() == {"lost": 1, "short_beams": 1}
    else:
        assert found.tally.found() == {"short_beams": 1}
        assert found.tally.inexact == {"candidates": 1, "sids": 1}
