"""A causal model gives the sequences and scores of `transformers`, prompt by prompt."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from grace.configs.options import CausalLayout, Normalizer
from grace.kernels import load_ops
from grace.model.checkpoints.import_causal import import_causal
from grace.model.definition.inputs import Prompts
from support.causal_folders import TIED, CausalShape, texts, write_causal
from support.hf_searches import CPU, HfModel, assert_same, generate, search

SCORE_TOLERANCE = 1e-4  # summed log-probabilities near -20, float32 in another order
PATTERNS = ("<a_{}>", "<b_{}>", "<c_{}>")
CODES = (7, 13, 9)
PROMPTS = ((3,), (1, 5, 9, 22, 21, 4, 4, 17), (2, 30, 41), (11, 12, 13, 14, 15))
ADDED = [text for at, n in zip(PATTERNS, CODES, strict=True) for text in texts(range(n), at)]
SHAPES = {
    "Qwen3": CausalShape("qwen3", ADDED),
    "Qwen3, tied": CausalShape("qwen3", ADDED, config=TIED),
    "Qwen2, tied, tokens in the order of texts": CausalShape("qwen2", sorted(ADDED), config=TIED),
    "LLaMA, tokens from last to first": CausalShape("llama", ADDED[::-1]),
    "Mistral, other positions": CausalShape("mistral", ADDED, config={"rope_theta": 77.0}),
}


@pytest.fixture(scope="module", params=SHAPES)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, HfModel]:
    folder = tmp_path_factory.mktemp("hf")
    return folder, write_causal(SHAPES[request.param], folder)


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
        assert_same([own], expected, SCORE_TOLERANCE)
