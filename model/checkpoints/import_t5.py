"""Import a Hugging Face T5 folder, as TIGER uses it, as a model with the same scores.

TIGER gives every position of a SID its own range of one shared vocabulary. Here each step has its
own embeddings and head. The vocabulary's other rows become the head's extra rows, which only enter
the normaliser. So log-probabilities stay those of the softmax over the whole vocabulary.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.t5_folder import CONFIG, T5Config, T5Tensors, open_tensors, read_config
from grace.model.definition.model import Model
from grace.model.definition.spec import (
    DecoderSpec,
    EncoderSpec,
    ModelSpec,
    SequenceInput,
    T5EncoderSpec,
)


@dataclass(frozen=True, slots=True)
class T5Layout:
    """Facts that a T5 folder lacks: which tokens are SIDs, and where the history comes from.

    Value v at SID position t is token token_offsets[t] + v.
    """

    sid_space: str
    vocab_sizes: tuple[int, ...]
    token_offsets: tuple[int, ...]
    history: str = "clicks"
    max_history: int = 20
    prefix_tokens: tuple[int, ...] = ()
    eos_token: int | None = None


def consecutive_offsets(vocab_sizes: tuple[int, ...], first_token: int) -> tuple[int, ...]:
    """Return offsets that put each position's tokens right after those of the one before it."""
    return tuple(accumulate(vocab_sizes[:-1], initial=first_token))


def import_t5(folder: Path, layout: T5Layout) -> Model:
    """Return the model in float32, on the CPU."""
    config = read_config(folder)
    _require_layout(folder, config, layout)
    spec = _spec(config, layout)
    with open_tensors(folder) as tensors:
        state = {
            **_encoder(tensors, config),
            **_decoder(tensors, config, spec.sid_length),
            **_vocabulary(tensors, config, layout),
        }
        tensors.require_all_used()
    model = empty_model(spec)
    model.load_state_dict(state, assign=True)
    return model.eval()


def _require_layout(folder: Path, config: T5Config, layout: T5Layout) -> None:
    sizes, offsets = layout.vocab_sizes, layout.token_offsets
    if not sizes or min(sizes) < 1 or len(offsets) != len(sizes):
        raise ConfigError(
            f"vocab sizes {list(sizes)}, token offsets {list(offsets)}: give one positive size and "
            "one offset per SID position"
        )
    last = max(offset + size - 1 for offset, size in zip(offsets, sizes, strict=True))
    special = [t for t in (*layout.prefix_tokens, layout.eos_token) if t is not None]
    if min((*offsets, *special)) < 0 or max((last, *special)) >= config.vocab_size:
        raise ConfigError(
            f"token offsets {list(offsets)} with vocab sizes {list(sizes)} and special tokens "
            f"{special} must stay in 0 to {config.vocab_size - 1}, the vocabulary of "
            f"{folder / CONFIG}"
        )


def _spec(config: T5Config, layout: T5Layout) -> ModelSpec:
    shared: dict[str, Any] = {
        "d_model": config.d_model,
        "heads": config.num_heads,
        "d_head": config.d_kv,
        "d_ff": config.d_ff,
        "ffn": config.ffn,
        "norm_eps": config.layer_norm_epsilon,
    }
    encoder = T5EncoderSpec(
        layers=config.num_layers,
        history=layout.history,
        num_tokens=config.vocab_size,
        token_offsets=layout.token_offsets,
        prefix_tokens=layout.prefix_tokens,
        eos_token=layout.eos_token,
        relative_buckets=config.relative_attention_num_buckets,
        relative_max_distance=config.relative_attention_max_distance,
        **shared,
    )
    decoder = DecoderSpec(
        layers=config.decoder_layers,
        extra_head_rows=tuple(config.vocab_size - size for size in layout.vocab_sizes),
        **shared,
    )
    history = SequenceInput(layout.max_history, side={})
    return ModelSpec(
        layout.sid_space,
        layout.vocab_sizes,
        {layout.history: history},
        EncoderSpec(t5=encoder),
        decoder,
    )


def _encoder(tensors: T5Tensors, config: T5Config) -> dict[str, Tensor]:
    state = {
        "encoder.bias": _bias(tensors, config, "encoder"),
        "encoder.final_norm": tensors.take("encoder.final_layer_norm.weight", config.d_model),
    }
    for i in range(config.num_layers):
        theirs, ours = f"encoder.block.{i}.layer", f"encoder.layers.{i}"
        state |= _self_attention(tensors, config, f"{theirs}.0", ours)
        state |= _feed_forward(tensors, config, f"{theirs}.1", ours)
    return state


def _decoder(tensors: T5Tensors, config: T5Config, sid_length: int) -> dict[str, Tensor]:
    bias = _bias(tensors, config, "decoder")[_causal_buckets(sid_length, config)]
    state = {
        "decoder.bias": bias.T.contiguous(),
        "decoder.final_norm": tensors.take("decoder.final_layer_norm.weight", config.d_model),
    }
    for i in range(config.decoder_layers):
        theirs, ours = f"decoder.block.{i}.layer", f"decoder.layers.{i}"
        state |= _self_attention(tensors, config, f"{theirs}.0", ours)
        state |= _cross_attention(tensors, config, f"{theirs}.1", ours)
        state |= _feed_forward(tensors, config, f"{theirs}.2", ours)
    return state


def _vocabulary(tensors: T5Tensors, config: T5Config, layout: T5Layout) -> dict[str, Tensor]:
    """Divide the shared vocabulary among the steps."""
    shape = (config.vocab_size, config.d_model)
    embed = tensors.take_tied("decoder.embed_tokens.weight", "shared.weight", *shape)
    history = tensors.take_tied("encoder.embed_tokens.weight", "shared.weight", *shape)
    # A file that says untied must have a head. A file that says tied may have one: newer versions
    # of transformers write "tied" for every T5 and let the weights decide.
    tied_to = "lm_head.weight" if config.tie_word_embeddings is False else "shared.weight"
    head = tensors.take_tied("lm_head.weight", tied_to, *shape) * config.head_scale
    length, widest = len(layout.vocab_sizes), max(layout.vocab_sizes)
    most_others = config.vocab_size - min(layout.vocab_sizes)
    inputs = embed.new_zeros(length - 1, widest, config.d_model)
    heads = head.new_zeros(length, widest + most_others, config.d_model)
    for t, (offset, size) in enumerate(zip(layout.token_offsets, layout.vocab_sizes, strict=True)):
        own = torch.zeros(config.vocab_size, dtype=torch.bool)
        own[offset : offset + size] = True
        heads[t, :size] = head[own]
        heads[t, widest : widest + config.vocab_size - size] = head[~own]
        if t + 1 < length:
            inputs[t, :size] = embed[own]
    return {
        "features.embed": history,
        "decoder.start": embed[config.decoder_start_token_id].clone(),
        "decoder.embed": inputs,
        "decoder.head": heads,
    }


def _bias(tensors: T5Tensors, config: T5Config, stack: str) -> Tensor:
    """Return the first layer's bias by bucket and head. The other layers share it."""
    return tensors.take(
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        config.relative_attention_num_buckets,
        config.num_heads,
    )


def _self_attention(
    tensors: T5Tensors, config: T5Config, theirs: str, ours: str
) -> dict[str, Tensor]:
    d, inner, attention = config.d_model, config.inner, f"{theirs}.SelfAttention"
    parts = [tensors.take(f"{attention}.{part}.weight", inner, d) for part in "qkv"]
    return {
        f"{ours}.self_norm": tensors.take(f"{theirs}.layer_norm.weight", d),
        f"{ours}.qkv": torch.cat(parts),
        f"{ours}.self_out": tensors.take(f"{attention}.o.weight", d, inner),
    }


def _cross_attention(
    tensors: T5Tensors, config: T5Config, theirs: str, ours: str
) -> dict[str, Tensor]:
    d, inner, attention = config.d_model, config.inner, f"{theirs}.EncDecAttention"
    return {
        f"{ours}.cross_norm": tensors.take(f"{theirs}.layer_norm.weight", d),
        f"{ours}.cross_q": tensors.take(f"{attention}.q.weight", inner, d),
        f"{ours}.cross_k": tensors.take(f"{attention}.k.weight", inner, d),
        f"{ours}.cross_v": tensors.take(f"{attention}.v.weight", inner, d),
        f"{ours}.cross_out": tensors.take(f"{attention}.o.weight", d, inner),
    }


def _feed_forward(
    tensors: T5Tensors, config: T5Config, theirs: str, ours: str
) -> dict[str, Tensor]:
    d, d_ff, dense = config.d_model, config.d_ff, f"{theirs}.DenseReluDense"
    inputs = ("wi_0", "wi_1") if config.ffn == "gated_gelu" else ("wi",)
    return {
        f"{ours}.ffn_norm": tensors.take(f"{theirs}.layer_norm.weight", d),
        f"{ours}.ffn_in": torch.cat([tensors.take(f"{dense}.{x}.weight", d_ff, d) for x in inputs]),
        f"{ours}.ffn_out": tensors.take(f"{dense}.wo.weight", d, d_ff),
    }


def _causal_buckets(length: int, config: T5Config) -> Tensor:
    """Return the buckets of the distances back, 0 to length - 1: see `t5_encoder`."""
    buckets, furthest = (
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    )
    exact, distance = buckets // 2, torch.arange(length)
    # The same float32 operations as in transformers: at the borders of buckets, rounding decides.
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, far)
