"""An imported Hugging Face T5 gives what `transformers` gives: contexts, SIDs and scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.index.matchers.matchers import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, load_ops
from grace.model.checkpoints.import_t5 import T5Layout, import_t5
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from support.hf_t5 import HfModel, HfShape, Sid, hf_inputs, hf_search, random_t5
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.plain_inputs import EventSequence, RequestFeatures, encode_inputs

CPU = torch.device("cpu")
SCORE_TOLERANCE = 3e-5  # of summed log-probabilities near -20: float32 in another order
CONTEXT_TOLERANCE = 1e-5
MAX_HISTORY = 7
HISTORIES = (1, 7, 3, 5)  # events of each request
OPS = {"reference": REFERENCE, "cpu": load_ops(CPU)}

SHAPES = {
    "tied relu, 1 layer, L=3": HfShape((11,) * 3, layers=1),
    "tied gated, 2 layers, L=4": HfShape((9,) * 4, gated=True, heads=2, d_kv=12, d_model=24),
    "untied relu, 3 layers, L=4, d_kv not d_model/heads": HfShape(
        (13,) * 4, layers=3, tied=False, scaled=False, heads=3, d_kv=5, d_model=16, d_ff=24
    ),
    "untied gated, 4 layers, L=3, d_kv not d_model/heads": HfShape(
        (17,) * 3, layers=4, tied=False, scaled=False, gated=True, heads=2, d_kv=11, others=31
    ),
    "untied scaled, tokens far apart": HfShape(
        (11,) * 3, tied=False, first_token=37, others=1, d_kv=3
    ),
    "tied unscaled, other epsilon": HfShape(
        (11,) * 4, scaled=False, config={"layer_norm_epsilon": 1e-2}
    ),
    "a short last position, as for collisions": HfShape((11, 11, 5)),
    "positions of all sizes": HfShape((5, 13, 7, 9), tied=False, gated=True),
    "more decoder than encoder layers": HfShape((11,) * 3, layers=1, decoder_layers=3),
    "few buckets of distance": HfShape(
        (7,) * 4,
        config={"relative_attention_num_buckets": 4, "relative_attention_max_distance": 5},
    ),
}


@dataclass(frozen=True)
class Pair:
    """The same model twice, a catalogue, and requests."""

    shape: HfShape
    theirs: HfModel
    ours: Model
    catalogue: tuple[Sid, ...]
    histories: tuple[tuple[Sid, ...], ...]
    prefix: tuple[int, ...]
    eos_token: int | None

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        return hf_inputs(self.shape, self.histories, self.prefix, self.eos_token)

    def context(self) -> UserContext:
        requests = [
            RequestFeatures(sequences={"clicks": EventSequence([v for sid in h for v in sid])})
            for h in self.histories
        ]
        with torch.inference_mode():
            return self.ours.user_context(encode_inputs(self.ours.spec, requests).inputs)

    @cached_property
    def snapshot(self) -> Snapshot:
        ads = [RawAd(ad_id=i, sid=sid, rules={}) for i, sid in enumerate(self.catalogue)]
        schema = TargetingSchema((), (), hash_seed=1)
        return plain_snapshot(schema, self.shape.vocab_sizes, ads, MatcherMode.CD)

    def search(self, beams: int, ops: Ops) -> Generated:
        """As `generate` searches: equally many beams in every step, and all of them returned."""
        users = UserEncoder(self.snapshot.schema, ()).encode([{}] * len(self.histories))
        return beam_search(
            self.ours.decoder,
            self.context(),
            UserTensors.of(users, CPU),
            DecodeIndex.of(self.snapshot, CPU),
            BeamProfile((1, *[beams] * (len(self.shape.vocab_sizes) - 1)), beams),
            ops,
        )

    def sids(self, leaves: Tensor) -> list[Sid]:
        live = leaves[leaves != NO_NODE].numpy()
        return [tuple(sid) for sid in self.snapshot.trie.sids(live).tolist()]


def random_sids(rng: np.random.Generator, shape: HfShape, count: int) -> tuple[Sid, ...]:
    drawn = rng.integers(0, shape.vocab_sizes, (4 * count, len(shape.vocab_sizes)))
    distinct = sorted({tuple(sid) for sid in drawn.tolist()})
    chosen = rng.choice(len(distinct), count, replace=False)
    return tuple(distinct[i] for i in sorted(chosen))


def make_pair(shape: HfShape, folder: Path, num_sids: int, seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    catalogue = random_sids(rng, shape, num_sids)
    theirs = random_t5(shape, folder, seed)
    prefix: tuple[int, ...] = ()
    eos_token = None
    if shape.others > 2:  # else the history stands alone
        prefix, eos_token = (shape.num_tokens - 3, shape.num_tokens - 2), shape.eos_token
    layout = T5Layout(
        "plain-1",
        shape.vocab_sizes,
        shape.offsets,
        max_history=MAX_HISTORY,
        prefix_tokens=prefix,
        eos_token=eos_token,
    )
    drawn = [rng.integers(0, num_sids, events) for events in HISTORIES]
    histories = tuple(tuple(catalogue[i] for i in events) for events in drawn)
    ours = import_t5(folder, layout)
    return Pair(shape, theirs, ours, catalogue, histories, prefix, eos_token)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Products this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(SHAPES[request.param], tmp_path_factory.mktemp("hf"), num_sids=311, seed=11)


def test_the_user_context_is_the_encoders_output(pair: Pair) -> None:
    ids, mask = pair.tokens
    with torch.inference_mode():
        expected = pair.theirs.encoder(ids, attention_mask=mask).last_hidden_state
    context = pair.context()
    longest = mask.shape[1]
    assert torch.equal(context.mask[:, :longest], mask.bool())
    assert not context.mask[:, longest:].any()
    difference = (context.states[:, :longest] - expected)[mask.bool()].abs().max()
    assert difference <= CONTEXT_TOLERANCE


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("beams", [4, 20, 64])
def test_beam_search_gives_the_sequences_of_generate_with_their_scores(
    pair: Pair, beams: int, ops: str
) -> None:
    got = pair.search(beams, OPS[ops])
    expected = hf_search(pair.theirs, pair.shape, pair.tokens, pair.catalogue, beams)
    for request in range(len(pair.histories)):
        sids = [pair.shape.sid(tokens) for tokens in expected.tokens[request]]
        assert pair.sids(got.leaves[request]) == sids
        theirs = torch.tensor(expected.scores[request])
        assert (got.scores[request] - theirs).abs().max() <= SCORE_TOLERANCE


@pytest.mark.parametrize(("num_sids", "beams"), [(23, 64), (3, 20), (1, 4)])
def test_where_sids_run_out_generate_goes_on_with_invalid_or_repeated_ones_and_we_stop(
    num_sids: int, beams: int, tmp_path: Path
) -> None:
    pair = make_pair(SHAPES["tied relu, 1 layer, L=3"], tmp_path, num_sids, seed=5)
    got = pair.search(beams, REFERENCE)
    expected = hf_search(pair.theirs, pair.shape, pair.tokens, pair.catalogue, beams)
    for request in range(len(pair.histories)):
        ours, rest = got.leaves[request][:num_sids], got.leaves[request][num_sids:]
        theirs = expected.tokens[request]
        sids = [pair.shape.sid(tokens) for tokens in theirs[:num_sids]]
        assert pair.sids(ours) == sids
        assert set(sids) == set(pair.catalogue)
        assert (rest == NO_NODE).all()
        assert (got.scores[request][num_sids:] == -torch.inf).all()
        # `generate` fills up from the -1e9 that it gives the beams it starts beside the first.
        assert max(expected.scores[request][num_sids:]) <= -1e9
        assert all(invalid_or_repeated(pair, tokens, sids) for tokens in theirs[num_sids:])


def invalid_or_repeated(pair: Pair, tokens: Sequence[int], sids: Sequence[Sid]) -> bool:
    sid = pair.shape.sid(tokens)
    return sid in sids or sid not in pair.catalogue
