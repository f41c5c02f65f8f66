"""A causal model gives the sequences and scores of `transformers`, prompt by prompt."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.configs.options import CausalLayout, Normalizer
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.model.checkpoints.import_causal import import_causal
from grace.model.definition.beam_search import beam_search
from grace.model.definition.inputs import Prompts
from support.causal_folders import TIED, CausalShape, HfModel, texts, write_causal
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

CPU = torch.device("cpu")
SCORE_TOLERANCE = 1e-4  # summed log-probabilities near -20, float32 in another order
PATTERNS = ("<a_{}>", "<b_{}>", "<c_{}>")
CODES = (7, 13, 9)
PROMPTS = ((3,), (1, 5, 9, 22, 21, 4, 4, 17), (2, 30, 41), (11, 12, 13, 14, 15))
ADDED = [text for at, n in zip(PATTERNS, CODES, strict=True) for text in texts(range(n), at)]
SHAPES = {
    "Qwen3": CausalShape("qwen3", ADDED),
    "Qwen3, tied": CausalShape("qwen3", ADDED, config=TIED),
    "Qwen2, tied, tokens in the order of their texts": CausalShape(
        "qwen2", sorted(ADDED), config=TIED
    ),
    "LLaMA, tokens from last to first": CausalShape("llama", ADDED[::-1]),
    "Mistral, other positions": CausalShape("mistral", ADDED, config={"rope_theta": 77.0}),
}

Tokens = tuple[int, ...]
Found = tuple[list[Tokens], list[float]]
Search = Callable[[HfModel, Sequence[Tokens], Sequence[int], int], Found]


def generate(
    theirs: HfModel, catalogue: Sequence[Tokens], prompt: Sequence[int], beams: int
) -> Found:
    """Run `generate` within the catalogue. Any other prefix may only continue with token 0."""

    def following(_: int, written: Tensor) -> list[int]:
        prefix = tuple(written[len(prompt) :].tolist())
        at = len(prefix)
        return sorted({sid[at] for sid in catalogue if sid[:at] == prefix}) or [0]

    found = theirs.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=len(CODES),
        length_penalty=0.0,
        do_sample=False,
        pad_token_id=0,
        prefix_allowed_tokens_fn=following,
        return_dict_in_generate=True,
        output_scores=True,
    )
    written = found.sequences[:, len(prompt) :].tolist()
    return list(map(tuple, written)), found.sequences_scores.tolist()


def search_in_levels(
    theirs: HfModel, catalogue: Sequence[Tokens], prompt: Sequence[int], beams: int
) -> Found:
    """Search with their logits, normalised among the tokens of each level."""
    best: dict[Tokens, float] = {(): 0.0}
    for at in range(len(CODES)):
        level = sorted({sid[at] for sid in catalogue})
        with torch.inference_mode():
            logits = theirs(torch.tensor([[*prompt, *prefix] for prefix in best])).logits
        scores = logits[:, -1, level].log_softmax(dim=-1).tolist()
        of_prefix = dict(zip(best, scores, strict=True))
        found = {sid[: at + 1] for sid in catalogue if sid[:at] in best}
        scored = {sid: best[sid[:at]] + of_prefix[sid[:at]][level.index(sid[at])] for sid in found}
        best = dict(sorted(scored.items(), key=lambda pair: -pair[1])[:beams])
    return list(best), list(best.values())


@pytest.fixture(scope="module", params=SHAPES)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, HfModel]:
    folder = tmp_path_factory.mktemp("hf")
    return folder, write_causal(SHAPES[request.param], folder)


@pytest.mark.parametrize("beams", [4, 33])
@pytest.mark.parametrize(("normalizer", "search"), [("all", generate), ("level", search_in_levels)])
def test_beam_search_gives_the_sequences_of_transformers_with_their_scores(
    folder: tuple[Path, HfModel], beams: int, normalizer: Normalizer, search: Search
) -> None:
    path, theirs = folder
    ours = import_causal(path, CausalLayout("x", PATTERNS, normalizer=normalizer)).model
    sids = np.unique(np.random.default_rng(11).integers(0, CODES, (311, 3)), axis=0)
    schema = TargetingSchema((), (), hash_seed=1)
    ads = [RawAd(ad_id=i, sid=tuple(sid), rules={}) for i, sid in enumerate(sids.tolist())]
    found = beam_search(
        ours.requires_grad_(False).decoder,
        Prompts(torch.tensor([0, *map(len, PROMPTS)]).cumsum(0), torch.tensor(sum(PROMPTS, ()))),
        UserTensors.of(UserEncoder(schema, ()).encode([{}] * len(PROMPTS)), CPU),
        DecodeIndex.of(plain_snapshot(schema, CODES, ads, MatcherMode.CD), CPU),
        BeamProfile((1, beams, beams), beams),
        load_ops(CPU),
    )
    levels = [np.array(tokens) for tokens in ours.spec.tokens_of_codes]
    tokens = np.stack([level[sids[:, at]] for at, level in enumerate(levels)], axis=1)
    catalogue = list(map(tuple, tokens.tolist()))
    for request, prompt in enumerate(PROMPTS):
        their_sids, their_scores = search(theirs, catalogue, prompt, beams)
        assert [catalogue[leaf] for leaf in found.leaves[request]] == their_sids
        assert (found.scores[request] - Tensor(their_scores)).abs().max() <= SCORE_TOLERANCE
