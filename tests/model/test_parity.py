"""Imported folders of T5 and causal models, and the exported folder of a model that `grace train`
wrote, give what `transformers` gives: contexts, SIDs and scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grace.configs.options import CausalLayout, Normalizer, T5Layout
from grace.kernels import REFERENCE, load_ops
from grace.model.checkpoints.checkpoint import load_encoder_decoder
from grace.model.checkpoints.import_causal import import_causal
from grace.model.checkpoints.t5_folder import export_t5, import_t5
from grace.model.definition.inputs import Prompts, UserContext
from grace.model.definition.model import Model
from grace.proto.retrieval_pb2 import Events, Features
from support.causal_folders import TIED, CausalShape, texts, write_causal
from support.hf_searches import CPU, PAD, HfModel, assert_same, generate, search
from support.plain_inputs import encode_inputs
from support.t5_folders import SHAPES, Sid, T5Shape, write_t5

SCORE_TOLERANCE = 3e-5  # summed log-probabilities near -20, float32 in another order
CONTEXT_TOLERANCE = 1e-5
HISTORIES = (1, 7, 3, 5)  # events of each request
TRAINED = T5Shape((64,) * 4, layers=1, decoder_layers=2, others=0)  # model/demo


@dataclass(frozen=True)
class Pair:
    """The same model twice, a catalogue, and requests."""

    theirs: HfModel
    ours: Model
    sids: Mapping[Sid, Sid]  # the catalogue's, each with its tokens
    histories: tuple[tuple[Sid, ...], ...]
    layout: T5Layout

    @cached_property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, padded on the right to the longest history."""
        begin, end = self.layout.prefix_tokens, self.layout.eos_token
        rows = [
            torch.tensor(sum((self.sids[x] for x in h), begin) + (() if end is None else (end,)))
            for h in self.histories
        ]
        ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
        return ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)

    def context(self) -> UserContext:
        requests = [
            Features(sequences={"clicks": Events(sids=[v for sid in h for v in sid])})
            for h in self.histories
        ]
        with torch.inference_mode():
            return self.ours.user_context(encode_inputs(self.ours.spec, requests))


@pytest.fixture(scope="module", params=[*SHAPES, "trained"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, repository: Path
) -> Pair:
    # Imported here: it takes seconds, and every worker of a test run imports every test file.
    transformers = pytest.importorskip("transformers", reason="this needs it: make setup")
    rng, folder = np.random.default_rng(11), tmp_path_factory.mktemp("pair") / "hf"
    shape, demo = SHAPES.get(request.param, TRAINED), repository / "model" / "demo"
    drawn = rng.integers(0, shape.vocab_sizes, (1244, len(shape.vocab_sizes))).tolist()
    distinct = sorted({tuple(sid) for sid in drawn if not {*shape.gaps} & {*sid}})
    catalogue = [distinct[i] for i in sorted(rng.choice(len(distinct), 311, replace=False))]
    if shape is TRAINED:
        ours, layout = load_encoder_decoder(demo), export_t5(demo, folder)
    else:
        write_t5(shape, folder, seed=11)
        ours, layout = import_t5(folder, shape.layout).model, shape.layout
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    events = [rng.integers(0, 311, count) for count in HISTORIES]
    histories = tuple(tuple(catalogue[i] for i in each) for each in events)
    return Pair(theirs, ours, {sid: shape.tokens(sid) for sid in catalogue}, histories, layout)


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
    packing = pair.ours.spec.packing
    levels = packing.codes if packing and pair.layout.normalizer == "level" else None
    expected = generate(pair.theirs, pair.sids, *pair.tokens, beams, levels)
    for ops in (REFERENCE, load_ops(CPU)):
        found = search(pair.ours.decoder, pair.context(), pair.sids, beams, ops)
        assert_same(found, expected, SCORE_TOLERANCE)


CAUSAL_TOLERANCE = 1e-4  # summed log-probabilities near -20, float32 in another order
PATTERNS = ("<a_{}>", "<b_{}>", "<c_{}>")
CODES = (7, 13, 9)
PROMPTS = ((3,), (1, 5, 9, 22, 21, 4, 4, 17), (2, 30, 41), (11, 12, 13, 14, 15))
ADDED = [text for at, n in zip(PATTERNS, CODES, strict=True) for text in texts(range(n), at)]
CAUSAL_SHAPES = {
    "Qwen3": CausalShape("qwen3", ADDED),
    "Qwen3, tied": CausalShape("qwen3", ADDED, config=TIED),
    "Qwen2, tied, tokens in the order of texts": CausalShape("qwen2", sorted(ADDED), config=TIED),
    "LLaMA, tokens from last to first": CausalShape("llama", ADDED[::-1]),
    "Mistral, other positions": CausalShape("mistral", ADDED, config={"rope_theta": 77.0}),
}


@pytest.fixture(scope="module", params=CAUSAL_SHAPES)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, HfModel]:
    folder = tmp_path_factory.mktemp("hf")
    return folder, write_causal(CAUSAL_SHAPES[request.param], folder)


@pytest.mark.parametrize("beams", [4, 33])
@pytest.mark.parametrize("normalizer", get_args(Normalizer))
def test_beam_search_gives_the_sequences_of_transformers_with_their_scores(
    folder: tuple[Path, HfModel], beams: int, normalizer: Normalizer
) -> None:
    path, theirs = folder
    ours = import_causal(path, CausalLayout("x", PATTERNS, normalizer=normalizer)).model
    sids = np.unique(np.random.default_rng(11).integers(0, CODES, (311, 3)), axis=0)
    levels = ours.spec.tokens_of_codes
    tokens = np.stack([np.array(x)[sids[:, at]] for at, x in enumerate(levels)], axis=1)
    catalogue = dict(zip(map(tuple, sids.tolist()), map(tuple, tokens.tolist()), strict=True))
    prompts = Prompts(
        torch.tensor([0, *map(len, PROMPTS)]).cumsum(0), torch.tensor(sum(PROMPTS, ()))
    )
    found = search(ours.requires_grad_(False).decoder, prompts, catalogue, beams, load_ops(CPU))
    of_step = levels if normalizer == "level" else None
    for own, prompt in zip(found, PROMPTS, strict=True):
        ids = torch.tensor([prompt])
        expected = generate(theirs, catalogue, ids, torch.ones_like(ids), beams, of_step)
        assert_same([own], expected, CAUSAL_TOLERANCE)
