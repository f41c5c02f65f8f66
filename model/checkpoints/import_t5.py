"""Import a Hugging Face T5 folder, as TIGER uses it, as a model with the same scores.

TIGER gives every position of a SID its own range of one shared vocabulary. Here each step has its
own embeddings and head. The vocabulary's other rows become the head's extra rows, which only enter
the normaliser. So log-probabilities stay those of the softmax over the whole vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grace.configs.options import T5Layout
from grace.configs.sections import load_section
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.t5_folder import T5Config, T5Tensors, open_tensors, read_config
from grace.model.definition.model import Model
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_encoder import distance_buckets

Sublayer: TypeAlias = Mapping[str, tuple[Sequence[str], tuple[int, ...]]]
"""The weights to import: our name, the T5 names that it concatenates, and the shape of each."""


def import_t5(folder: Path, layout: T5Layout) -> Model:
    """Return the model in float32, on the CPU."""
    config = read_config(folder)
    spec = load_section(ModelSpec, _spec(config, layout), f"{folder} with this layout")
    attention, cross, feed_forward = _sublayers(config)
    with open_tensors(folder) as tensors:
        of_decoder, layers = [attention, cross, feed_forward], config.decoder_layers
        state = {
            **_stack(tensors, config, "encoder", config.num_layers, [attention, feed_forward]),
            **_stack(tensors, config, "decoder", layers, of_decoder),
            **_biases(tensors, config, spec.sid_length),
            **_vocabulary(tensors, config, layout),
        }
        tensors.require_all_used()
    model = empty_model(spec)
    model.load_state_dict(state, assign=True)
    return model.eval()


def _spec(config: T5Config, layout: T5Layout) -> dict[str, Any]:
    shared = {
        "d_model": config.d_model,
        "heads": config.num_heads,
        "d_head": config.d_kv,
        "d_ff": config.d_ff,
        "ffn": config.ffn,
        "norm_eps": config.layer_norm_epsilon,
    }
    t5 = {
        "layers": config.num_layers,
        "history": layout.history,
        "num_tokens": config.vocab_size,
        "token_offsets": layout.offsets,
        "prefix_tokens": layout.prefix_tokens,
        "eos_token": layout.eos_token,
        "relative_buckets": config.relative_attention_num_buckets,
        "relative_max_distance": config.relative_attention_max_distance,
    }
    extra = [config.vocab_size - size for size in layout.vocab_sizes]
    return {
        "sid_space": layout.sid_space,
        "vocab_sizes": layout.vocab_sizes,
        "inputs": {layout.history: {"kind": "sequence", "max_length": layout.max_history}},
        "encoder": {"t5": t5 | shared},
        "decoder": {"layers": config.decoder_layers, "extra_head_rows": extra, **shared},
    }


def _sublayers(config: T5Config) -> tuple[Sublayer, Sublayer, Sublayer]:
    """Return self-attention, cross-attention and the feed-forward network."""
    d, inner, d_ff = config.d_model, config.inner, config.d_ff
    attention = {
        "self_norm": (["layer_norm"], (d,)),
        "qkv": ([f"SelfAttention.{part}" for part in "qkv"], (inner, d)),
        "self_out": (["SelfAttention.o"], (d, inner)),
    }
    cross = {
        "cross_norm": (["layer_norm"], (d,)),
        **{f"cross_{part}": ([f"EncDecAttention.{part}"], (inner, d)) for part in "qkv"},
        "cross_out": (["EncDecAttention.o"], (d, inner)),
    }
    inputs = ("wi_0", "wi_1") if config.ffn == "gated_gelu" else ("wi",)
    feed_forward = {
        "ffn_norm": (["layer_norm"], (d,)),
        "ffn_in": ([f"DenseReluDense.{part}" for part in inputs], (d_ff, d)),
        "ffn_out": (["DenseReluDense.wo"], (d, d_ff)),
    }
    return attention, cross, feed_forward


def _stack(
    tensors: T5Tensors, config: T5Config, stack: str, layers: int, sublayers: list[Sublayer]
) -> dict[str, Tensor]:
    gain = tensors.take(f"{stack}.final_layer_norm.weight", config.d_model)
    state = {f"{stack}.final_norm": gain}
    for layer in range(layers):
        for place, weights in enumerate(sublayers):
            theirs = f"{stack}.block.{layer}.layer.{place}"
            for ours, (names, shape) in weights.items():
                parts = [tensors.take(f"{theirs}.{name}.weight", *shape) for name in names]
                state[f"{stack}.layers.{layer}.{ours}"] = torch.cat(parts)
    return state


def _biases(tensors: T5Tensors, config: T5Config, sid_length: int) -> dict[str, Tensor]:
    """Return each stack's relative bias, which the first layer has and the others share."""
    encoder, decoder = (
        tensors.take(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            config.relative_attention_num_buckets,
            config.num_heads,
        )
        for stack in ("encoder", "decoder")
    )
    distances = torch.arange(sid_length)  # back from a token
    furthest = config.relative_attention_max_distance
    buckets = distance_buckets(distances, config.relative_attention_num_buckets, furthest)
    return {"encoder.bias": encoder, "decoder.bias": decoder[buckets].T.contiguous()}


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
    for t, (offset, size) in enumerate(zip(layout.offsets, layout.vocab_sizes, strict=True)):
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
