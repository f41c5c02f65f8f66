"""Hugging Face T5 models with random weights, in folders as `save_pretrained` writes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

__all__ = ["HfModel", "HfSearch", "HfShape", "hf_inputs", "hf_search", "random_t5"]

HfModel = Any  # T5ForConditionalGeneration, whose annotations do not describe what it does
Sid = tuple[int, ...]
PAD = 0


@dataclass(frozen=True)
class HfShape:
    """One shared vocabulary: padding, the SIDs' tokens from `first_token` on, and `others` more.

    The last token is the end of sequence, which no SID can reach.
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
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def offsets(self) -> Sid:
        return tuple(accumulate(self.vocab_sizes[:-1], initial=self.first_token))

    @property
    def num_tokens(self) -> int:
        return self.first_token + sum(self.vocab_sizes) + self.others

    @property
    def eos_token(self) -> int:
        return self.num_tokens - 1

    def tokens(self, sid: Sid) -> list[int]:
        return [offset + value for offset, value in zip(self.offsets, sid, strict=True)]

    def sid(self, tokens: Sequence[int]) -> Sid:
        return tuple(token - offset for token, offset in zip(tokens, self.offsets, strict=True))


def random_t5(
    shape: HfShape, folder: Path, seed: int, dtype: torch.dtype = torch.float32, **saving: Any
) -> HfModel:
    """The model that it also writes to the folder."""
    settings: dict[str, Any] = {
        "vocab_size": shape.num_tokens,
        "d_model": shape.d_model,
        "d_kv": shape.d_kv,
        "d_ff": shape.d_ff,
        "num_layers": shape.layers,
        "num_decoder_layers": shape.decoder_layers,
        "num_heads": shape.heads,
        "feed_forward_proj": "gated-gelu" if shape.gated else "relu",
        "tie_word_embeddings": shape.scaled,  # which is what scales the head's inputs
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": shape.eos_token,
    }
    model: HfModel = T5ForConditionalGeneration(T5Config(**settings, **shape.config))
    if not shape.tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if "layer_norm" in name else _std(shape, name) * noise)
    model = model.eval().to(dtype)
    model.save_pretrained(folder, **saving)
    return model


def _std(shape: HfShape, name: str) -> float:
    """T5's own, but for logits of standard deviation 2 and a position bias that matters."""
    if name in ("shared.weight", "lm_head.weight"):
        is_head = shape.tied or name == "lm_head.weight"
        return 2.0 * shape.d_model**-0.5 if is_head and not shape.scaled else 2.0
    if "relative_attention_bias" in name:
        return 1.0
    kind = name.split(".")[-2]
    columns = {"o": shape.heads * shape.d_kv, "wo": shape.d_ff}.get(kind, shape.d_model)
    return float(columns**-0.5 * (shape.d_kv**-0.5 if kind == "q" else 1.0))


def hf_inputs(
    shape: HfShape,
    histories: Sequence[Sequence[Sid]],
    prefix: Sequence[int] = (),
    eos_token: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask of a batch, padded on the right to its longest history."""
    end = [] if eos_token is None else [eos_token]
    rows = [[*prefix, *(t for sid in h for t in shape.tokens(sid)), *end] for h in histories]
    ids = torch.full((len(rows), max(map(len, rows))), PAD)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return ids, mask


@dataclass(frozen=True)
class HfSearch:
    """Per request, best first. `scores` are summed log-probabilities."""

    tokens: list[list[list[int]]]
    scores: list[list[float]]


def hf_search(
    model: HfModel,
    shape: HfShape,
    inputs: tuple[Tensor, Tensor],
    catalogue: Sequence[Sid],
    beams: int,
) -> HfSearch:
    """`generate`, kept to the catalogue's SIDs; a prefix outside of it may only go on with PAD."""
    ids, mask = inputs
    found = model.generate(
        input_ids=ids,
        attention_mask=mask,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=len(shape.vocab_sizes),
        length_penalty=0.0,
        do_sample=False,
        # The cache is laid out for as many layers as the encoder has.
        use_cache=shape.decoder_layers in (None, shape.layers),
        prefix_allowed_tokens_fn=_allowed(shape, catalogue),
        return_dict_in_generate=True,
        output_scores=True,
    )
    batch = len(ids)
    return HfSearch(
        found.sequences[:, 1:].view(batch, beams, -1).tolist(),
        found.sequences_scores.view(batch, beams).tolist(),
    )


def _allowed(shape: HfShape, catalogue: Sequence[Sid]) -> Callable[[int, Tensor], list[int]]:
    following: dict[Sid, set[int]] = {}
    for sid in catalogue:
        tokens = shape.tokens(sid)
        for length in range(len(tokens)):
            following.setdefault(tuple(tokens[:length]), set()).add(tokens[length])

    def allowed(_request: int, written: Tensor) -> list[int]:
        return sorted(following.get(tuple(written[1:].tolist()), {PAD}))

    return allowed
