"""An imported Hugging Face T5 gives what `transformers` gives: contexts, SIDs and scores.

Only this file of the model's tests needs `transformers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.configs.options import T5Layout
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, load_ops
from grace.model.checkpoints.import_t5 import import_t5
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.proto.retrieval_pb2 import Events, Features
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.plain_inputs import encode_inputs
from support.t5_folders import PAD, Sid, T5Shape, write_t5

HfModel = Any  # T5ForConditionalGeneration, whose annotations do not describe what it does

CPU = torch.device("cpu")
SCORE_TOLERANCE = 3e-5  # summed log-probabilities near -20, float32 in another order
CONTEXT_TOLERANCE = 1e-5
MAX_HISTORY = 7
HISTORIES = (1, 7, 3, 5)  # events of each request

TEXTS = ("<a_{}>", "<b_{}>", "<c_{}>", "<d_{}>")
SHAPES = {
    "tied relu, 1 layer, L=3": T5Shape((11,) * 3, layers=1),
    "tied gated, 2 layers, L=4": T5Shape((9,) * 4, gated=True, heads=2, d_kv=12, d_model=24),
    "untied relu, 3 layers, L=4, d_kv not d_model/heads": T5Shape(
        (13,) * 4, layers=3, tied=False, scaled=False, heads=3, d_kv=5, d_model=16, d_ff=24
    ),
    "untied gated, 4 layers, L=3, d_kv not d_model/heads": T5Shape(
        (17,) * 3, layers=4, tied=False, scaled=False, gated=True, heads=2, d_kv=11, others=31
    ),
    "untied scaled, tokens far apart": T5Shape(
        (11,) * 3, tied=False, first_token=37, others=1, d_kv=3
    ),
    "tied unscaled, other epsilon": T5Shape(
        (11,) * 4, scaled=False, config={"layer_norm_epsilon": 1e-2}
    ),
    "a short last position, as for collisions": T5Shape((11, 11, 5)),
    "positions of all sizes": T5Shape((5, 13, 7, 9), tied=False, gated=True),
    "more decoder than encoder layers": T5Shape((11,) * 3, layers=1, decoder_layers=3),
    "LETTER: tokens in the order of texts, codes without a token": T5Shape(
        (13, 12, 11, 12), heads=6, d_model=16, first_token=20, others=0, texts=TEXTS, gaps=(2, 7)
    ),
    "torch-rechub, with a prefix": T5Shape((12, 13, 11), first_token=4, texts=TEXTS[:3]),
    "few buckets of distance": T5Shape(
        (7,) * 4, config={"relative_attention_num_buckets": 4, "relative_attention_max_distance": 5}
    ),
}


@dataclass(frozen=True)
class Pair:
    """The same model twice, a catalogue, and requests."""

    shape: T5Shape
    theirs: HfModel
    ours: Model
    catalogue: tuple[Sid, ...]
    histories: tuple[tuple[Sid, ...], ...]
    layout: T5Layout

    @cached_property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, padded on the right to the longest history."""
        end = () if self.layout.eos_token is None else (self.layout.eos_token,)
        rows = [
            [*self.layout.prefix_tokens, *(t for sid in h for t in self.shape.tokens(sid)), *end]
            for h in self.histories
        ]
        ids = torch.full((len(rows), max(map(len, rows))), PAD)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        lengths = torch.tensor([len(row) for row in rows])
        return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()

    def context(self) -> UserContext:
        requests = [
            Features(sequences={"clicks": Events(sids=[v for sid in h for v in sid])})
            for h in self.histories
        ]
        with torch.inference_mode():
            return self.ours.user_context(encode_inputs(self.ours.spec, requests))

    @cached_property
    def snapshot(self) -> Snapshot:
        ads = [RawAd(ad_id=i, sid=sid, rules={}) for i, sid in enumerate(self.catalogue)]
        schema = TargetingSchema((), (), hash_seed=1)
        return plain_snapshot(schema, self.shape.vocab_sizes, ads, MatcherMode.CD)

    def search(self, beams: int, ops: Ops) -> Generated:
        """Search like `generate`: with equally many beams in every step, and return them all."""
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


def random_sids(rng: np.random.Generator, shape: T5Shape, count: int) -> tuple[Sid, ...]:
    drawn = rng.integers(0, shape.vocab_sizes, (4 * count, len(shape.vocab_sizes)))
    distinct = sorted({tuple(sid) for sid in drawn.tolist() if not {*shape.gaps} & {*sid}})
    chosen = rng.choice(len(distinct), count, replace=False)
    return tuple(distinct[i] for i in sorted(chosen))


def make_pair(shape: T5Shape, folder: Path, num_sids: int, seed: int) -> Pair:
    # Imported here: it takes seconds, and every worker of a test run imports every test file.
    transformers = pytest.importorskip(
        "transformers", reason="parity with Hugging Face needs it: make setup"
    )
    rng = np.random.default_rng(seed)
    catalogue = random_sids(rng, shape, num_sids)
    write_t5(shape, folder, seed)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    has_room = shape.others > 2  # for tokens of a prefix and of the end
    layout = T5Layout(
        "plain-1",
        sid_tokens=shape.texts,
        offsets=None if shape.texts else shape.offsets,
        vocab_sizes=shape.vocab_sizes,
        max_history=MAX_HISTORY,
        prefix_tokens=(shape.first_token - 1, shape.num_tokens - 2) if has_room else (),
        eos_token=shape.eos_token if has_room or shape.texts else None,
    )
    drawn = [rng.integers(0, num_sids, events) for events in HISTORIES]
    histories = tuple(tuple(catalogue[i] for i in events) for events in drawn)
    ours = import_t5(folder, layout).model
    return Pair(shape, theirs, ours, catalogue, histories, layout)


@dataclass(frozen=True)
class HfSearch:
    """The result for each request, best first. `scores` are summed log-probabilities."""

    tokens: list[list[list[int]]]
    scores: list[list[float]]


def hf_search(pair: Pair, beams: int) -> HfSearch:
    """`generate`, kept to the catalogue's SIDs; another prefix may only continue with PAD."""
    shape, (ids, mask) = pair.shape, pair.tokens
    found = pair.theirs.generate(
        input_ids=ids,
        attention_mask=mask,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=len(shape.vocab_sizes),
        length_penalty=0.0,
        do_sample=False,
        # The cache has as many layers as the encoder.
        use_cache=shape.decoder_layers in (None, shape.layers),
        prefix_allowed_tokens_fn=allowed(shape, pair.catalogue),
        return_dict_in_generate=True,
        output_scores=True,
    )
    return HfSearch(
        found.sequences[:, 1:].view(len(ids), beams, -1).tolist(),
        found.sequences_scores.view(len(ids), beams).tolist(),
    )


def allowed(shape: T5Shape, catalogue: Sequence[Sid]) -> Callable[[int, Tensor], list[int]]:
    following: dict[Sid, set[int]] = {}
    for sid in catalogue:
        tokens = shape.tokens(sid)
        for length in range(len(tokens)):
            following.setdefault(tuple(tokens[:length]), set()).add(tokens[length])
    return lambda _, written: sorted(following.get(tuple(written[1:].tolist()), {PAD}))


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


@pytest.mark.parametrize("beams", [4, 33])
def test_beam_search_gives_the_sequences_of_generate_with_their_scores(
    pair: Pair, beams: int
) -> None:
    expected = hf_search(pair, beams)
    for ops in (REFERENCE, load_ops(CPU)):
        got = pair.search(beams, ops)
        for request in range(len(pair.histories)):
            sids = pair.sids(got.leaves[request])
            assert [pair.shape.tokens(sid) for sid in sids] == expected.tokens[request]
            theirs = torch.tensor(expected.scores[request])
            assert (got.scores[request] - theirs).abs().max() <= SCORE_TOLERANCE
