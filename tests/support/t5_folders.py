"""Hugging Face T5 folders with random weights, as `save_pretrained` of transformers 5 writes them.

Nothing here needs `transformers`; tests/model/test_parity.py loads the same folders with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grace.configs.options import T5Layout

Sid = tuple[int, ...]
PAD = 0


@dataclass(frozen=True)
class T5Shape:
    """One shared vocabulary: padding, the SIDs' tokens from `first_token` on, and `others` more.

    The end of sequence, which no SID can reach, is the last token. If tokens have `texts`, they are
    in the order of these, and the end of sequence is token 1.
    """

    vocab_sizes: Sid
    layers: int = 2
    decoder_layers: int | None = None
    heads: int = 3
    d_kv: int = 8
    d_model: int = 24
    d_ff: int = 40
    gated: bool = False
    tied: bool = True
    scaled: bool = True
    first_token: int = 1
    others: int = 3
    texts: tuple[str, ...] = ()  # of tokens at each position, with {} for the code
    gaps: Sid = ()  # codes without a token
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def offsets(self) -> Sid:
        return tuple(accumulate(self.vocab_sizes[:-1], initial=self.first_token))

    @property
    def num_tokens(self) -> int:
        return self.first_token + (len(self.added) or sum(self.vocab_sizes)) + self.others

    @property
    def eos_token(self) -> int:
        return 1 if self.texts else self.num_tokens - 1

    @property
    def added(self) -> list[str]:
        """The texts of all SIDs' tokens, in the vocabulary's order."""
        pairs = zip(self.texts, self.vocab_sizes, strict=False)
        return sorted(x.format(code) for x, n in pairs for code in {*range(n)} - {*self.gaps})

    def tokens(self, sid: Sid) -> Sid:
        if not self.texts:
            return tuple(offset + value for offset, value in zip(self.offsets, sid, strict=True))
        texts = [text.format(code) for text, code in zip(self.texts, sid, strict=True)]
        return tuple(self.first_token + self.added.index(text) for text in texts)

    @property
    def layout(self) -> T5Layout:
        has_room = self.others > 2  # for tokens of a prefix and of the end
        return T5Layout(
            "plain-1",
            sid_tokens=self.texts,
            offsets=None if self.texts else self.offsets,
            vocab_sizes=self.vocab_sizes,
            max_history=7,
            prefix_tokens=(self.first_token - 1, self.num_tokens - 2) if has_room else (),
            eos_token=self.eos_token if has_room or self.texts else None,
        )


TEXTS = ("<a_{}>", "<b_{}>", "<c_{}>", "<d_{}>")
SHAPES: Mapping[str, T5Shape] = {
    "tied relu, 1 layer, L=3": T5Shape((11,) * 3, layers=1),
    "tied gated, 2 layers, L=4": T5Shape((9,) * 4, gated=True, heads=2, d_kv=12, d_model=24),
    "untied relu, 3 layers, L=4, d_kv not d_model/heads": T5Shape(
        (13,) * 4, layers=3, tied=False, scaled=False, heads=3, d_kv=5, d_model=16, d_ff=24
    ),
    "untied gated, 4 layers, L=3, d_kv not d_model/heads": T5Shape(
        (17,) * 3, layers=4, tied=False, scaled=False, gated=True, heads=2, d_kv=11, others=31
    ),
    "untied scaled, far apart": T5Shape((11,) * 3, tied=False, first_token=37, others=1, d_kv=3),
    "other epsilon": T5Shape((11,) * 4, scaled=False, config={"layer_norm_epsilon": 1e-2}),
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


def write_t5(
    shape: T5Shape, folder: Path, seed: int, dtype: torch.dtype = torch.float32, shards: int = 1
) -> dict[str, Tensor]:
    """Write config.json, generation_config.json and the weights. Return the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": shape.num_tokens,
        "d_model": shape.d_model,
        "d_kv": shape.d_kv,
        "d_ff": shape.d_ff,
        "num_layers": shape.layers,
        "num_decoder_layers": shape.decoder_layers or shape.layers,
        "num_heads": shape.heads,
        "feed_forward_proj": "gated-gelu" if shape.gated else "relu",
        "dense_act_fn": "gelu_new" if shape.gated else "relu",
        "is_gated_act": shape.gated,
        "is_encoder_decoder": True,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "scale_decoder_outputs": shape.scaled,
        "tie_word_embeddings": True,  # of every model: then the weights decide
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": shape.eos_token,
        **shape.config,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokens = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    generation = {name: config[name] for name in tokens}
    # The cache has as many layers as the encoder.
    generation["use_cache"] = config["num_decoder_layers"] == shape.layers
    (folder / "generation_config.json").write_text(json.dumps(generation))
    added = [{"id": shape.first_token + i, "content": text} for i, text in enumerate(shape.added)]
    tokenizer = {"added_tokens": added, "model": {"type": "Unigram", "vocab": [["word", 0.0]]}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in _shapes(shape, config["relative_attention_num_buckets"]).items():
        noise = torch.randn(size, generator=generator)
        is_gain = "layer_norm" in name
        weights[name] = (1 + 0.2 * noise if is_gain else _std(shape, name) * noise).to(dtype)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return weights
    owners = {name: f"model-{i % shards + 1:05}.safetensors" for i, name in enumerate(weights)}
    for file in set(owners.values()):
        part = {name: weight for name, weight in weights.items() if owners[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": owners}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights


def _shapes(shape: T5Shape, buckets: int) -> dict[str, tuple[int, ...]]:
    d, inner = shape.d_model, shape.heads * shape.d_kv
    vocabulary = (shape.num_tokens, d)
    shapes: dict[str, tuple[int, ...]] = {"shared": vocabulary}
    if not shape.tied:
        shapes["lm_head"] = vocabulary
    layers = {"encoder": shape.layers, "decoder": shape.decoder_layers or shape.layers}
    for stack, count in layers.items():
        shapes[f"{stack}.final_layer_norm"] = (d,)
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        shapes[bias] = (buckets, shape.heads)
        parts = ["SelfAttention", *["EncDecAttention"] * (stack == "decoder"), "DenseReluDense"]
        for i in range(count):
            for j, part in enumerate(parts):
                layer = f"{stack}.block.{i}.layer.{j}"
                shapes[f"{layer}.layer_norm"] = (d,)
                if part == "DenseReluDense":
                    for name in ("wi_0", "wi_1") if shape.gated else ("wi",):
                        shapes[f"{layer}.{part}.{name}"] = (shape.d_ff, d)
                    shapes[f"{layer}.{part}.wo"] = (d, shape.d_ff)
                else:
                    shapes |= {f"{layer}.{part}.{name}": (inner, d) for name in "qkv"}
                    shapes[f"{layer}.{part}.o"] = (d, inner)
    return {f"{name}.weight": size for name, size in shapes.items()}


def _std(shape: T5Shape, name: str) -> float:
    """T5's own, but for logits of standard deviation 2 and a position bias that matters."""
    if name in ("shared.weight", "lm_head.weight"):
        is_head = shape.tied or name == "lm_head.weight"
        return 2.0 * shape.d_model**-0.5 if is_head and not shape.scaled else 2.0
    if "relative_attention_bias" in name:
        return 1.0
    kind = name.split(".")[-2]
    columns = {"o": shape.heads * shape.d_kv, "wo": shape.d_ff}.get(kind, shape.d_model)
    return float(columns**-0.5 * (shape.d_kv**-0.5 if kind == "q" else 1.0))
