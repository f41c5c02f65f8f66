"""Beam search compared with scores of every SID, and what every engine promises each request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows
from grace.kernels import REFERENCE, Beams, DecodeIndex, Ops, UserTensors, load_ops, with_eligible
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from support.decode_cases import admitted_entries
from support.fast_cases import (
    ALL_STEPS,
    DECODERS,
    FastCase,
    fast_case,
    on,
    search_fast,
    search_plainly,
)
from support.models import SMALL_DECODER, random_context, random_decoder, sequence_scores
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import asking, random_ads, random_case

CPU = torch.device("cpu")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
D_CONTEXT = 20
TOLERANCE = 2e-5  # float32 sums in another order
OPS = {"reference": REFERENCE, "cpu": load_ops(CPU)}
ENGINES: dict[str, Callable[[FastCase, Ops], Generated]] = {
    "plain": search_plainly,
    "fast": lambda case, ops: search_fast(case, ops, ALL_STEPS),
    "fast-no-memo": lambda case, ops: search_fast(case, ops, 0),
    "fp8": lambda case, ops: search_fast(case, ops, ALL_STEPS, "fp8"),
}
each_engine = pytest.mark.parametrize("engine", ENGINES)


def search(
    decoder: Decoder,
    context: UserContext,
    snapshot: Snapshot,
    users: Sequence[UserAttributes],
    profile: BeamProfile,
    ops: Ops = REFERENCE,
) -> Generated:
    index = DecodeIndex.of(snapshot, CPU)
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode([*map(asking, users)])
    tensors = with_eligible(UserTensors.of(rows, CPU), index, ops)
    return beam_search(decoder, context, tensors, index, profile, ops)


def reachable_leaves(snapshot: Snapshot, rows: UserRows, request: int) -> set[int]:
    """Leaves whose every prefix is admitted."""
    admitted, trie = admitted_entries(snapshot, rows, request), snapshot.trie
    sids = trie.sids(np.arange(trie.num_leaves)).tolist()
    return {
        leaf
        for leaf, sid in enumerate(sids)
        if all(admitted[trie.walk(tuple(sid[: place + 1])) - 1] for place in range(len(sid)))
    }


def wide_profile(snapshot: Snapshot) -> BeamProfile:
    """As many beams as there are prefixes: nothing is ever cut."""
    return BeamProfile(snapshot.trie.level_counts[:-1], snapshot.trie.num_leaves)


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("name", DECODERS)
def test_wide_beams_find_every_reachable_sid_with_its_score_best_first(name: str, ops: str) -> None:
    (spec, vocab_sizes), seed = DECODERS[name], len(name)
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=9, num_users=5)
    ads = random_ads(rng, case.schema, vocab_sizes, 63)
    snapshot = plain_snapshot(case.schema, vocab_sizes, ads)
    decoder = random_decoder(spec, vocab_sizes, D_CONTEXT, seed)
    context = random_context(len(case.users), 7, D_CONTEXT, seed)
    got = search(decoder, context, snapshot, case.users, wide_profile(snapshot), OPS[ops])
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode([*map(asking, case.users)])
    all_sids = torch.from_numpy(snapshot.trie.sids(np.arange(snapshot.trie.num_leaves)).astype(int))
    for request in range(len(case.users)):
        expected = sequence_scores(decoder, context, request, all_sids)
        live = got.leaves[request] != NO_NODE
        leaves, scores = got.leaves[request][live], got.scores[request][live]
        assert set(leaves.tolist()) == reachable_leaves(snapshot, rows, request)
        assert torch.allclose(scores, expected[leaves.long()], atol=TOLERANCE, rtol=0)
        assert (scores.diff() <= 0).all()
        assert (got.scores[request][~live] == -torch.inf).all()
        assert live.int().diff().le(0).all(), "dead ones come last"


@dataclass(frozen=True)
class Engine:
    """An engine and a case that it can search, on a device."""

    case: FastCase
    ops: Ops
    run: Callable[[FastCase, Ops], Generated]

    @staticmethod
    def of(name: str, device: str, requests: int = 3) -> "Engine":
        decoder = "L=3-wide" if name == "fp8" else "L=4-unequal"
        case = on(fast_case(decoder, 3, MatcherMode.CD, requests=requests), torch.device(device))
        return Engine(case, load_ops(torch.device(device)), ENGINES[name])

    def search(self, states: torch.Tensor, places: Sequence[int] | None = None) -> Generated:
        """Search for contexts of these states, with the masks at `places`."""
        mask, users = self.case.context.mask, self.case.users
        context = UserContext(states, mask if places is None else mask[[*places]])
        users = UserTensors.asking(users.bitmask[: len(states)])  # mode cd asks no user
        return self.run(replace(self.case, context=context, users=users), self.ops)


@DEVICES
@each_engine
def test_a_request_gives_the_same_bits_at_every_row_with_any_neighbours(
    engine: str, device: str
) -> None:
    """A neighbour may have a context that is a thousand times larger, or no finite numbers."""
    torch.set_num_threads(2)
    own = Engine.of(engine, device)
    states = own.case.context.states
    whole = own.search(states)
    assert not whole.corrupt.any()
    for places in ([2, 0, 1], [1, 1, 2]):
        got = own.search(states[places], places)
        assert torch.equal(got.leaves, whole.leaves[places])
        assert torch.equal(got.scores, whole.scores[places])
    for factor in (1e3, torch.nan, torch.inf):
        other = states.clone()
        other[1] *= factor
        got = own.search(other)
        assert got.corrupt.tolist() == [False, factor != 1e3, False]
        for request in (0, 2):
            assert torch.equal(got.leaves[request], whole.leaves[request])
            assert torch.equal(got.scores[request], whole.scores[request])
        if factor != 1e3:
            assert (got.leaves[1] == NO_NODE).all()
            assert (got.scores[1] == -torch.inf).all()


def test_numbers_that_overflow_are_corrupt_and_callers_may_require_finite_ones() -> None:
    own = Engine.of("plain", "cpu")
    own.search(own.case.context.states).require_finite()
    own.case.context.states[1] = 3e38
    got = own.search(own.case.context.states)
    assert got.corrupt.tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"^request 1: the model's numbers are not finite; "):
        got.require_finite()


def observed(change: Callable[[Beams], Beams]) -> Ops:
    """The reference operations, whose selected beams go through `change`."""
    return replace(REFERENCE, select_beams=lambda given: change(REFERENCE.select_beams(given)))


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_request_that_was_corrupt_at_any_step_stays_corrupt(step: int, engine: str) -> None:
    case = fast_case("L=2-one-layer", 2, MatcherMode.CD, requests=2)
    corrupt = iter([torch.tensor([False, step == each]) for each in range(2)])
    ops = observed(lambda beams: replace(beams, corrupt=next(corrupt)))
    assert ENGINES[engine](case, ops).corrupt.tolist() == [False, True]


def test_masked_keys_have_no_influence_and_a_context_may_have_no_key() -> None:
    own = Engine.of("plain", "cpu")
    states, mask = own.case.context.states, own.case.context.mask
    clean = own.search(states)
    states[~mask] = 1e4
    assert torch.equal(own.search(states).scores, clean.scores)
    mask[:] = False
    assert not own.search(states).corrupt.any()


def test_a_model_snapshot_profile_and_users_that_do_not_match_are_refused() -> None:
    snapshot = plain_snapshot(TargetingSchema((), (), 0), (2, 3), [RawAd(0, (0, 1))])
    context = random_context(1, 3, D_CONTEXT, 0)
    for vocabulary, beams, users, error, message in (
        ((2, 4), (1, 2), 1, ConfigError, r"\(2, 4\), the snapshot's are \(2, 3\)"),
        ((2, 3), (1, 2, 2), 1, ConfigError, "3 steps, a SID has 2 tokens"),
        ((2, 3), (1, 2), 2, ValueError, "users: 2 rows, but the user context has 1 requests"),
    ):
        decoder = random_decoder(SMALL_DECODER, vocabulary, D_CONTEXT, 0)
        with pytest.raises(error, match=message):
            search(decoder, context, snapshot, [{}] * users, BeamProfile(beams, 2))
