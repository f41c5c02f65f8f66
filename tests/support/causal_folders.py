"""Hugging Face folders of causal models with random weights, made by `transformers`.

`REPOSITORIES` are laid out like the checkpoints of projects that publish SID models: their family,
the texts of their tokens, and the order in which the tokens joined the vocabulary.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.configs.options import CausalLayout
from grace.kernels import REFERENCE
from grace.model.definition.inputs import Prompts
from grace.model.definition.model import CausalModel

HfModel = Any  # a causal model of transformers, whose annotations do not describe what it does

WORDS = 23  # tokens of text, which come first
SIZES = {
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "bos_token_id": 3,
    "eos_token_id": None,
}
OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 10, "rms_norm_eps": 1e-3},
    "qwen2": {},
    "llama": {"num_key_value_heads": 6},
    "mistral": {"sliding_window": None, "head_dim": 14, "num_key_value_heads": 2},
}
TIED = {"tie_word_embeddings": True}


def texts(codes: Iterable[int], *patterns: str) -> list[str]:
    return [pattern.format(code) for pattern in patterns for code in codes]


@dataclass(frozen=True)
class CausalShape:
    """`added` are the tokens that follow those of text; `rows` pad the vocabulary to a multiple."""

    family: str
    added: Sequence[str]
    rows: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return -(-(WORDS + len(self.added)) // self.rows) * self.rows

    def token(self, text: str) -> int:
        return WORDS + self.added.index(text)


_OPEN, _LC = ("<s_a_{}>", "<s_b_{}>", "<s_c_{}>"), ("<a_{}>", "<b_{}>", "<c_{}>", "<d_{}>")
_MINI = [*texts((2, 3, 11), "<a_{}>"), *texts(range(12), "<b_{}>"), "<c_0>", "<c_1>"]
REPOSITORIES = {
    "OpenOneRec": (
        CausalShape("qwen3", [*texts(range(13), *_OPEN), "<|sid_begin|>", "<|sid_end|>"], rows=8),
        CausalLayout("open-1", _OPEN),
        {"<s_a_12>": 12, "<s_b_3>": 3, "<s_c_4>": 4},
    ),
    # Only codes of items have tokens, in the order of their texts: position 0 lacks some codes.
    "MiniOneRec": (
        CausalShape("qwen2", sorted(_MINI), config=TIED),
        CausalLayout("mini-1", _LC[:3], vocab_sizes=(13, 12, 2)),
        {"<a_11>": 11, "<b_3>": 3, "<c_1>": 1},
    ),
    "LC-Rec": (
        CausalShape("llama", sorted(texts(range(11), *_LC))),
        CausalLayout("lc-1", _LC),
        {"<a_1>": 1, "<b_2>": 2, "<c_3>": 3, "<d_10>": 10},
    ),
    # C0, C1, ... are one range for all positions: code c of position l is C(c + 7 l).
    "FORGE": (
        CausalShape("qwen2", ["[SEP]", *texts(range(32), "C{}")], rows=16, config=TIED),
        CausalLayout("forge-1", offsets=(24, 31, 38), vocab_sizes=(7, 7, 7)),
        {"C3": 3, "C7": 0, "C20": 6},
    ),
}
"""A folder's shape, the layout to import it with, and a SID: the code of each token's text."""


def write_causal(
    shape: CausalShape, folder: Path, dtype: torch.dtype = torch.float32, shards: bool = False
) -> HfModel:
    """Write a folder, and return its model. Logits have a standard deviation near 2."""
    # Imported here: it takes seconds, and every worker of a test run imports every test file.
    transformers = pytest.importorskip("transformers", reason="it makes the folders: make setup")
    values = {**SIZES, **OF_FAMILY[shape.family], **shape.config, "vocab_size": shape.num_tokens}
    config = transformers.AutoConfig.for_model(shape.family, **values)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        scale = 0.5 if weight.dim() == 1 else weight.shape[1] ** -0.5
        if name == "lm_head.weight" or (config.tie_word_embeddings and "embed" in name):
            scale *= 2
        weight.data = 1 + 0.2 * noise if name.endswith("norm.weight") else scale * noise
    model.tie_weights()
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
    added = [{"id": shape.token(text), "content": text} for text in shape.added]
    words = {f"word{token}": token for token in range(WORDS)}
    (folder / "tokenizer.json").write_text(
        json.dumps({"added_tokens": added, "model": {"type": "BPE", "vocab": words}})
    )
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def assert_equal_function(ours: CausalModel, theirs: HfModel) -> None:
    """Compare the probabilities of what follows a prompt."""
    decoder, prompt = ours.float().requires_grad_(False).decoder, torch.tensor([3, 5, 9, 21, 24])
    none = torch.zeros((1, 1), dtype=torch.int32)
    with torch.inference_mode():
        cache = decoder.begin(Prompts(torch.tensor([0, len(prompt)]), prompt))
        logits = decoder.step(0, none[0], (), none, cache, REFERENCE)
        expected = theirs(prompt[None]).logits[0, -1].log_softmax(dim=-1)
    codes = torch.tensor(ours.spec.tokens_of_codes[0])
    got = logits[0].log_softmax(dim=-1)[: len(codes)]
    assert (got - expected[codes]).abs().max() <= 1e-5
