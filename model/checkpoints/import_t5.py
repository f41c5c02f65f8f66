"""Import a Hugging Face T5 folder, as TIGER uses it, as a model with the same scores.

TIGER gives every code of a SID position its own token of one shared vocabulary. Here each step has
its own embeddings and head. The vocabulary's other rows become the head's extra rows, which only
enter the normaliser. So log-probabilities stay those of the softmax over the whole vocabulary.

It refuses by name every setting that GRACE's T5 does not compute. Dropout is for training only and
is ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.options import Option, T5Layout
from grace.configs.sections import Section, load_section
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.hugging_face import HfFolder, HfTensors, open_folder, read_json
from grace.model.checkpoints.sid_tokens import Imported, SidVocabulary, find_sid_tokens
from grace.model.definition.model import Model
from grace.model.definition.spec import Size
from grace.model.definition.t5_encoder import distance_buckets
from grace.model.definition.t5_spec import EncoderDecoderSpec, Ffn

_GENERATION = "generation_config.json"
_FFNS: dict[str, tuple[Ffn, str]] = {
    "relu": ("relu", "relu"),
    "gated-gelu": ("gated_gelu", "gelu_new"),
}
_OPTIONAL = (
    # Old files have it; transformers ignores it too.
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    # Unused where the file contains each of the three tensors that are tied to it.
    "shared.weight",
)


@dataclass(frozen=True, slots=True)
class T5Config(Section):
    """The keys of config.json that affect the model's function, with T5's defaults."""

    model_type: str
    vocab_size: Annotated[int, Option(least=1, most=1 << 22)]
    d_model: Size
    d_kv: Size
    d_ff: Size
    num_layers: Size
    num_heads: Size
    num_decoder_layers: Annotated[int | None, Option(least=1)] = None
    # The encoder halves them for the two directions.
    relative_attention_num_buckets: Annotated[int, Option(least=4)] = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    decoder_start_token_id: int | None = None

    def faults(self) -> Iterator[str]:
        """Yield each setting that GRACE's T5 does not compute."""
        if not self.is_encoder_decoder:
            yield "is_encoder_decoder: must be true: both halves are needed"
        projection = self.feed_forward_proj
        if projection not in _FFNS:
            known = ", ".join(_FFNS)
            yield f"feed_forward_proj: {projection!r} is not supported; supported are {known}"
        # In transformers, these two override feed_forward_proj.
        ffn, activation = _FFNS[projection]
        for key, implied in (("dense_act_fn", activation), ("is_gated_act", ffn == "gated_gelu")):
            written = getattr(self, key)
            if written not in (None, implied):
                yield (
                    f"{key}: {written!r} is not supported with feed_forward_proj {projection!r}, "
                    f"which means {implied!r}"
                )
        buckets = self.relative_attention_num_buckets
        furthest = self.relative_attention_max_distance
        if furthest <= buckets // 2:
            yield f"relative_attention_max_distance: must be above {buckets // 2}, got {furthest}"
        start = self.decoder_start_token_id
        if start is None or not 0 <= start < self.vocab_size:
            yield (
                f"decoder_start_token_id: expected 0 to {self.vocab_size - 1}, got {start}; "
                "write there the token that decoding begins with"
            )

    @property
    def ffn(self) -> Ffn:
        return _FFNS[self.feed_forward_proj][0]

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_layers

    @property
    def head_scale(self) -> float:
        """T5 scales the input of a tied head. Only newer files have a key for that."""
        scaled = self.scale_decoder_outputs
        if scaled is None:
            scaled = self.tie_word_embeddings is not False
        return self.d_model**-0.5 if scaled else 1.0


def read_config(folder: HfFolder) -> T5Config:
    """Check and return config.json. Its `decoder_start_token_id` is what `generate` starts with."""
    generation = folder.path / _GENERATION
    chosen = read_json(generation).get("decoder_start_token_id") if generation.exists() else None
    # Another family has other keys, so its name comes before any missing key.
    model_type = folder.values.get("model_type", "t5")
    if model_type != "t5":
        fault = f"model_type: {model_type!r}; only 't5' is imported"
        raise ConfigError(f"{folder.config}: {fault}, or see `grace import-causal --help`")
    return folder.keys(T5Config, **({} if chosen is None else {"decoder_start_token_id": chosen}))


Sublayer: TypeAlias = Mapping[str, tuple[Sequence[str], tuple[int, ...]]]
"""The weights to import: our name, the T5 names that it concatenates, and the shape of each."""


Rows: TypeAlias = Mapping[int | None, int]
"""The row of each token in the encoder's vocabulary, from the first row to the last."""


def import_t5(folder: Path, layout: T5Layout) -> Imported[Model]:
    """Return the model in float32, on the CPU."""
    source = open_folder(folder)
    config = read_config(source)
    found = find_sid_tokens(folder, layout, config.vocab_size)
    rows = _rows(folder, config, layout, found)
    values = _spec(config, layout, found, rows)
    spec = load_section(EncoderDecoderSpec, values, f"{folder} with this layout")
    attention, cross, feed_forward = _sublayers(config)
    with source.tensors(_OPTIONAL.__contains__, torch.float32) as tensors:
        of_decoder, layers = [attention, cross, feed_forward], config.decoder_layers
        state = {
            **_stack(tensors, config, "encoder", config.num_layers, [attention, feed_forward]),
            **_stack(tensors, config, "decoder", layers, of_decoder),
            **_biases(tensors, config, spec.sid_length),
            **_vocabulary(tensors, config, found),
        }
        tensors.require_all_used()
    state["features.embed"] = state["features.embed"][[*rows]]
    model = empty_model(spec)
    assert isinstance(model, Model)
    model.load_state_dict(state, assign=True)
    return Imported(model.eval(), found.without_token)


def _rows(folder: Path, config: T5Config, layout: T5Layout, found: SidVocabulary) -> Rows:
    """Return each token's row. SIDs come first if a position's tokens do not follow each other."""
    sids = zip(found.sid_tokens, found.vocab_sizes, strict=True)
    of_sids = [token for tokens, codes in sids for token in tokens.of(codes)]
    ends = [*layout.prefix_tokens, layout.eos_token or 0]
    for name, tokens in (("a SID", of_sids), ("--prefix-tokens or --eos-token", ends)):
        for token in tokens:
            if not 0 <= token < config.vocab_size:
                fault = f"{name} has token {token}, but the folder has 0 to {config.vocab_size - 1}"
                raise ConfigError(f"{folder}: {fault}; correct the options")
    order = [*range(config.vocab_size)]
    if any(tokens.ids for tokens in found.sid_tokens):
        order = [*of_sids, *sorted({*order} - {*of_sids})]
    if (excess := len(order) - config.vocab_size) > 0:
        raise ConfigError(f"{folder}: {excess} tokens have two codes; correct --sid-tokens")
    return {token: row for row, token in enumerate(order)}


def _spec(config: T5Config, layout: T5Layout, found: SidVocabulary, rows: Rows) -> dict[str, Any]:
    shared = {
        "d_model": config.d_model,
        "heads": config.num_heads,
        "d_head": config.d_kv,
        "d_ff": config.d_ff,
        "ffn": config.ffn,
        "norm_eps": config.layer_norm_epsilon,
    }
    firsts = [tokens.of(1)[0] for tokens in found.sid_tokens]
    t5 = {
        "layers": config.num_layers,
        "history": layout.history,
        "num_tokens": config.vocab_size,
        "token_offsets": [rows.get(first, first) for first in firsts],
        "prefix_tokens": [rows.get(token, token) for token in layout.prefix_tokens],
        "eos_token": rows.get(layout.eos_token, layout.eos_token),
        "relative_buckets": config.relative_attention_num_buckets,
        "relative_max_distance": config.relative_attention_max_distance,
    }
    extra = [config.vocab_size - size for size in found.vocab_sizes]
    return {
        "sid_space": layout.sid_space,
        "vocab_sizes": found.vocab_sizes,
        "inputs": {layout.history: {"kind": "sequence", "max_length": layout.max_history}},
        "encoder": {"t5": t5 | shared},
        "decoder": {"layers": config.decoder_layers, "extra_head_rows": extra, **shared},
    }


def _sublayers(config: T5Config) -> tuple[Sublayer, Sublayer, Sublayer]:
    """Return self-attention, cross-attention and the feed-forward network."""
    d, inner, d_ff = config.d_model, config.num_heads * config.d_kv, config.d_ff
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
    tensors: HfTensors, config: T5Config, stack: str, layers: int, sublayers: list[Sublayer]
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


def _biases(tensors: HfTensors, config: T5Config, sid_length: int) -> dict[str, Tensor]:
    """Return each stack's relative bias, which the first layer has and the others share."""
    count, furthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    name, shape = "relative_attention_bias.weight", (count, config.num_heads)
    encoder, decoder = (
        tensors.take(f"{stack}.block.0.layer.0.SelfAttention.{name}", *shape)
        for stack in ("encoder", "decoder")
    )
    buckets = distance_buckets(torch.arange(sid_length), count, furthest)  # back from a token
    return {"encoder.bias": encoder, "decoder.bias": decoder[buckets].T.contiguous()}


def _vocabulary(tensors: HfTensors, config: T5Config, found: SidVocabulary) -> dict[str, Tensor]:
    """Divide the shared vocabulary among the steps."""
    shape = (config.vocab_size, config.d_model)
    embed = tensors.take_tied("decoder.embed_tokens.weight", "shared.weight", *shape)
    history = tensors.take_tied("encoder.embed_tokens.weight", "shared.weight", *shape)
    # A file that says untied must have a head. A file that says tied may have one: newer versions
    # of transformers write "tied" for every T5 and let the weights decide.
    tied_to = "lm_head.weight" if config.tie_word_embeddings is False else "shared.weight"
    head = tensors.take_tied("lm_head.weight", tied_to, *shape) * config.head_scale
    length, widest = len(found.vocab_sizes), max(found.vocab_sizes)
    most_others = config.vocab_size - min(found.vocab_sizes)
    inputs = embed.new_zeros(length - 1, widest, config.d_model)
    heads = head.new_zeros(length, widest + most_others, config.d_model)
    for t, (tokens, size) in enumerate(zip(found.sid_tokens, found.vocab_sizes, strict=True)):
        own = torch.tensor(tokens.of(size))
        other = torch.ones(config.vocab_size, dtype=torch.bool).index_fill(0, own, False)
        heads[t, :size] = head[own]
        heads[t, widest : widest + config.vocab_size - size] = head[other]
        if t + 1 < length:
            inputs[t, :size] = embed[own]
    return {
        "features.embed": history,
        "decoder.start": embed[config.decoder_start_token_id].clone(),
        "decoder.embed": inputs,
        "decoder.head": heads,
    }
