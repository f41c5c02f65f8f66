"""Beam search compared with scores of every SID, and with its own definition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.index.matchers.admission import admitted_entries
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows
from grace.kernels import (
    REFERENCE,
    Beams,
    Candidates,
    DecodeIndex,
    Ops,
    UserTensors,
    load_ops,
    with_eligible,
)
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from support.fast_cases import DECODERS
from support.models import SMALL_DECODER, random_context, random_decoder, sequence_scores
from support.oracle import RawAd, eligible
from support.plain_builder import plain_snapshot
from support.strategies import Case, random_ads, random_case, random_schema

CPU = torch.device("cpu")
D_CONTEXT = 20
TOLERANCE = 2e-5  # float32 sums in another order
OPS = {"reference": REFERENCE, "cpu": load_ops(CPU)}


def search(
    decoder: Decoder,
    context: UserContext,
    snapshot: Snapshot,
    users: Sequence[UserAttributes],
    profile: BeamProfile,
    ops: Ops = REFERENCE,
) -> Generated:
    index = DecodeIndex.of(snapshot, CPU)
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode(users)
    tensors = with_eligible(UserTensors.of(rows, CPU), index, ops)
    return beam_search(decoder, context, tensors, index, profile, ops)


def reachable_leaves(snapshot: Snapshot, rows: UserRows, request: int) -> set[int]:
    """Leaves whose every prefix is admitted."""
    admitted = admitted_entries(snapshot, rows, request)
    sids = snapshot.trie.sids(np.arange(snapshot.trie.num_leaves)).tolist()
    return {
        leaf
        for leaf, sid in enumerate(sids)
        if all(
            admitted[snapshot.trie.walk(tuple(sid[:length])) - 1]
            for length in range(1, len(sid) + 1)
        )
    }


def wide_profile(snapshot: Snapshot) -> BeamProfile:
    """As many beams as there are prefixes: nothing is ever cut."""
    return BeamProfile(snapshot.trie.level_counts[:-1], snapshot.trie.num_leaves)


@dataclass(frozen=True)
class Scene:
    """A catalogue with users who each have a context, and a small model."""

    snapshot: Snapshot
    users: Sequence[UserAttributes]
    decoder: Decoder
    context: UserContext

    @staticmethod
    def of(seed: int, users: int) -> "Scene":
        rng = np.random.default_rng(seed)
        case = random_case(rng, num_ads=150, num_users=users, schema=random_schema(rng, (5, 64), 1))
        snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
        decoder = random_decoder(SMALL_DECODER, case.vocab_sizes, D_CONTEXT, 1)
        return Scene(snapshot, case.users, decoder, random_context(users, 7, D_CONTEXT, 1))

    def search(self, profile: BeamProfile, places: Sequence[int] | None = None) -> Generated:
        """Search for the users at `places`, or for all."""
        rows = [*range(len(self.users))] if places is None else list(places)
        context = UserContext(self.context.states[rows], self.context.mask[rows])
        users = [self.users[i] for i in rows]
        return search(self.decoder, context, self.snapshot, users, profile)


def snapshot_of(sids: Sequence[tuple[int, ...]], vocab_sizes: tuple[int, ...]) -> Snapshot:
    """A catalogue of one ad for each SID, without targeting."""
    ads = [RawAd(i, sid) for i, sid in enumerate(sids)]
    return plain_snapshot(TargetingSchema((), (), 0), vocab_sizes, ads)


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
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode(case.users)
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


def exact_case(seed: int) -> Case:
    """One attribute, one value per user: then a node is admitted exactly if it is eligible."""
    rng = np.random.default_rng(seed)
    values = tuple(f"v{i}" for i in range(11))
    schema = TargetingSchema((Attribute("a", values),), (), hash_seed=1)
    case = random_case(rng, num_ads=77, num_users=1, schema=schema)
    ads = tuple(
        replace(ad, rules={"a": (frozenset({values[int(rng.integers(9))]}), None)})
        for ad in case.ads
    )
    users = tuple({"a": [value]} for value in values)
    return Case(schema, case.vocab_sizes, ads, users)


@pytest.mark.parametrize("seed", range(3))
def test_fewer_eligible_sids_than_beams_gives_exactly_the_eligible_ones(seed: int) -> None:
    case = exact_case(seed)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    decoder = random_decoder(SMALL_DECODER, case.vocab_sizes, D_CONTEXT, seed)
    context = random_context(len(case.users), 5, D_CONTEXT, seed)
    length = len(case.vocab_sizes)
    profile = BeamProfile((1, *[63] * (length - 1)), 63)
    got = search(decoder, context, snapshot, case.users, profile)
    sids = [tuple(sid) for sid in snapshot.trie.sids(np.arange(snapshot.trie.num_leaves)).tolist()]
    counts = []
    for request, user in enumerate(case.users):
        wanted = {ad.sid for ad in case.ads if eligible(case.schema, ad, user)}
        found = [leaf for leaf in got.leaves[request].tolist() if leaf != NO_NODE]
        assert len(found) == len(set(found))
        assert {sids[leaf] for leaf in found} == wanted
        counts.append(len(found))
    assert counts[-1] == 0, "no ad targets the last value: no SIDs, and no error"
    assert max(counts) > 0


@pytest.mark.parametrize("size", [3, 8], ids=lambda n: f"bucket={n}")
def test_a_request_gives_the_same_bits_at_every_row_with_any_neighbours(size: int) -> None:
    scene, rng = Scene.of(size, size), np.random.default_rng(size)
    profile = BeamProfile((1, *[9] * (scene.decoder.sid_length - 1)), 11)
    whole = scene.search(profile)
    for _ in range(size):
        places = rng.integers(size, size=size).tolist()
        got = scene.search(profile, places)
        assert torch.equal(got.leaves, whole.leaves[places])
        assert torch.equal(got.scores, whole.scores[places])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38], ids=str)
def test_a_request_of_infinite_or_nan_numbers_is_corrupt_and_changes_no_other(value: float) -> None:
    scene = Scene.of(3, 3)
    clean = scene.search(wide_profile(scene.snapshot))
    scene.context.states[1] = value
    got = scene.search(wide_profile(scene.snapshot))
    assert not clean.corrupt.any()
    assert got.corrupt.tolist() == [False, True, False]
    assert (got.leaves[1] == NO_NODE).all()
    assert (got.scores[1] == -torch.inf).all()
    assert torch.equal(got.leaves[[0, 2]], clean.leaves[[0, 2]])
    assert torch.equal(got.scores[[0, 2]], clean.scores[[0, 2]])
    clean.require_finite()
    with pytest.raises(ValueError, match=r"^request 1: the model's numbers are not finite; "):
        got.require_finite()


def observed(change: Callable[[Beams], Beams]) -> Ops:
    """The reference operations, whose selected beams go through `change`."""

    def select(
        logits: Tensor,
        scores: Tensor,
        candidates: Candidates,
        k: int,
        ordered: bool,
        row_scale: Tensor | None = None,
    ) -> Beams:
        return change(REFERENCE.select_beams(logits, scores, candidates, k, ordered, row_scale))

    return replace(REFERENCE, select_beams=select)


@pytest.mark.parametrize("step", [0, 1])
def test_a_request_that_was_corrupt_at_any_step_stays_corrupt(step: int) -> None:
    snapshot = snapshot_of([(i // 5, i % 5) for i in range(25)], (5, 5))
    decoder = random_decoder(SMALL_DECODER, (5, 5), D_CONTEXT, 2)
    context = random_context(2, 3, D_CONTEXT, 2)
    corrupt = iter([torch.tensor([False, step == each]) for each in range(2)])
    ops = observed(lambda beams: replace(beams, corrupt=next(corrupt)))
    got = search(decoder, context, snapshot, [{}, {}], BeamProfile((1, 3), 4), ops)
    assert got.corrupt.tolist() == [False, True]


def test_other_batch_sizes_agree_up_to_rounding() -> None:
    scene = Scene.of(4, 7)
    profile = wide_profile(scene.snapshot)
    whole = scene.search(profile)
    for request in range(7):
        alone = scene.search(profile, [request])
        order, order_alone = whole.leaves[request].argsort(), alone.leaves[0].argsort()
        assert torch.equal(alone.leaves[0][order_alone], whole.leaves[request][order])
        torch.testing.assert_close(
            alone.scores[0][order_alone], whole.scores[request][order], rtol=0, atol=TOLERANCE
        )


def test_equal_scores_go_to_the_lower_row_then_token_and_the_last_step_orders_them() -> None:
    """With a head of zeros, every token of a step has the same score."""
    sids = [(0, 1), (0, 4), (1, 0), (2, 2), (2, 3), (4, 0)]
    snapshot = snapshot_of(sids, (5, 5))
    decoder = random_decoder(SMALL_DECODER, (5, 5), D_CONTEXT, 0)
    with torch.no_grad():
        decoder.head.zero_()
    context = random_context(1, 3, D_CONTEXT, 0)
    got = search(decoder, context, snapshot, [{}], BeamProfile((1, 3), 4))
    assert got.leaves[0].tolist() == [0, 1, 2, 3]
    assert torch.allclose(got.scores[0], torch.full((4,), 2 * float(np.log(1 / 5))))


def test_masked_keys_have_no_influence_and_a_context_may_have_no_key() -> None:
    scene = Scene.of(5, 3)
    profile = wide_profile(scene.snapshot)
    clean = scene.search(profile)
    scene.context.states[~scene.context.mask] = 1e4
    assert torch.equal(scene.search(profile).scores, clean.scores)
    scene.context.mask[:] = False
    assert not scene.search(profile).corrupt.any()


def test_a_model_snapshot_profile_and_users_that_do_not_match_are_refused() -> None:
    snapshot = snapshot_of([(0, 1)], (2, 3))
    context = random_context(1, 3, D_CONTEXT, 0)
    decoder = random_decoder(SMALL_DECODER, (2, 4), D_CONTEXT, 0)
    with pytest.raises(ConfigError, match=r"\(2, 4\), the snapshot's are \(2, 3\)"):
        search(decoder, context, snapshot, [{}], BeamProfile((1, 2), 2))
    decoder = random_decoder(SMALL_DECODER, (2, 3), D_CONTEXT, 0)
    with pytest.raises(ConfigError, match="3 steps, a SID has 2 tokens"):
        search(decoder, context, snapshot, [{}], BeamProfile((1, 2, 2), 2))
    with pytest.raises(ValueError, match="users: 2 rows, but the user context has 1 requests"):
        search(decoder, context, snapshot, [{}, {}], BeamProfile((1, 2), 2))
