"""Hugging Face T5 folders, as TIGER uses them, to models with the same scores and back.

TIGER gives every code of a SID position its own token of one shared vocabulary. Here each step has
its own embeddings and head. With normaliser `all`, the vocabulary's other rows become the head's
extra rows, which only enter the normaliser, so log-probabilities stay those of T5's softmax.

Import and export refuse by name what the other does not compute, but for dropout, which is for
training only. The export is the import backwards: see `_Places`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from grace.configs.errors import CheckpointError, ConfigError
from grace.configs.options import Option, T5Layout
from grace.configs.regular_files import whole_folder
from grace.configs.sections import Section, load_section
from grace.model.checkpoints.checkpoint import empty_model, load_encoder_decoder
from grace.model.checkpoints.folder import MODEL_YAML, WEIGHTS
from grace.model.checkpoints.hugging_face import CONFIG, HfFolder, HfTensors, open_folder, read_json
from grace.model.checkpoints.sid_tokens import Imported, SidVocabulary, find_sid_tokens
from grace.model.checkpoints.weights_file import write_weights
from grace.model.definition.model import Model
from grace.model.definition.spec import Size
from grace.model.definition.t5_encoder import T5Encoder, distance_buckets
from grace.model.definition.t5_spec import DecoderSpec, EncoderDecoderSpec, Ffn

_GENERATION = "generation_config.json"
_TOKENS, _HEAD = "shared.weight", "lm_head.weight"
_ENCODER_TOKENS, _DECODER_TOKENS = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"

_LAYER: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "self_norm": (0, ("layer_norm",)),
    "qkv": (0, ("SelfAttention.q", "SelfAttention.k", "SelfAttention.v")),
    "self_out": (0, ("SelfAttention.o",)),
    "cross_norm": (1, ("layer_norm",)),
    "cross_q": (1, ("EncDecAttention.q",)),
    "cross_k": (1, ("EncDecAttention.k",)),
    "cross_v": (1, ("EncDecAttention.v",)),
    "cross_out": (1, ("EncDecAttention.o",)),
    "ffn_norm": (2, ("layer_norm",)),
    "ffn_in": (2, ("DenseReluDense.wi",)),
    "ffn_out": (2, ("DenseReluDense.wo",)),
}
"""For each weight of a layer, the sublayer in the decoder, and the T5 names of its parts."""

_BIAS = "relative_attention_bias.weight"
_OPTIONAL = (
    # Old files have it; transformers ignores it too.
    f"decoder.block.0.layer.1.EncDecAttention.{_BIAS}",
    # Unused where the file contains each of the three tensors that are tied to it.
    _TOKENS,
)


@dataclass(frozen=True, slots=True)
class T5Config(Section):
    """The keys of config.json that affect the model, and their names in `encoder.t5`."""

    model_type: str
    vocab_size: Annotated[int, Option("num_tokens", least=1, most=1 << 22)]
    d_model: Annotated[Size, "d_model"]
    d_kv: Annotated[Size, "d_head"]
    d_ff: Annotated[Size, "d_ff"]
    num_layers: Annotated[Size, "layers"]
    num_heads: Annotated[Size, "heads"]
    num_decoder_layers: Annotated[int | None, Option(least=1)] = None
    # The encoder halves them for the two directions.
    relative_attention_num_buckets: Annotated[int, Option("relative_buckets", least=4)] = 32
    relative_attention_max_distance: Annotated[int, "relative_max_distance"] = 128
    layer_norm_epsilon: Annotated[float, "norm_eps"] = 1e-6
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None
    is_encoder_decoder: Literal[True] = True
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    decoder_start_token_id: int | None = None

    def faults(self) -> Iterator[str]:
        """Yield each setting that GRACE's T5 does not compute."""
        # In transformers, these two override feed_forward_proj.
        gated = self.ffn == "gated_gelu"
        implied = {"dense_act_fn": "gelu_new" if gated else "relu", "is_gated_act": gated}
        for key, meant in implied.items():
            if (written := getattr(self, key)) not in (None, meant):
                with_projection = f"with feed_forward_proj {self.feed_forward_proj!r}"
                yield f"{key}: {written!r} is not supported {with_projection}, only {meant!r}"
        half = self.relative_attention_num_buckets // 2
        if (furthest := self.relative_attention_max_distance) <= half:
            fault = f"must be above {half}, half of the buckets, got {furthest}"
            yield f"relative_attention_max_distance: {fault}"
        start, last = self.decoder_start_token_id, self.vocab_size - 1
        if start is None or not 0 <= start <= last:
            fault = f"expected 0 to {last}, got {start}; write the token that decoding begins with"
            yield f"decoder_start_token_id: {fault}"

    @property
    def ffn(self) -> Ffn:
        return "relu" if self.feed_forward_proj == "relu" else "gated_gelu"

    @property
    def head_scale(self) -> float:
        """T5 scales the input of a tied head. Only newer files have a key for that."""
        key = self.scale_decoder_outputs
        scaled = self.tie_word_embeddings is not False if key is None else key
        return self.d_model**-0.5 if scaled else 1.0


_KEYS = HfFolder.keys_by_name(T5Config)


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


def import_t5(folder: Path, layout: T5Layout) -> Imported[Model]:
    """Return the model in float32, on the CPU."""
    source = open_folder(folder)
    config = read_config(source)
    with source.tensors(_OPTIONAL.__contains__, torch.float32) as tensors:
        imported = _import(tensors, config, layout)
        tensors.require_all_used()
    return imported


def _import(tensors: HfTensors, config: T5Config, layout: T5Layout) -> Imported[Model]:
    found = find_sid_tokens(tensors.folder, layout, config.vocab_size)
    rows = _rows(tensors.folder, config, layout, found)
    values = _spec(config, layout, found, rows)
    spec = load_section(EncoderDecoderSpec, values, f"{tensors.folder} with this layout")
    model = empty_model(spec)
    assert isinstance(model, Model)
    state = _by_step(tensors, config, spec, rows)
    for ours, weight in model.state_dict().items():
        if ours not in state:
            names, (rows_of_all, *columns) = _parts(ours, config), weight.shape
            parts = (tensors.take(name, rows_of_all // len(names), *columns) for name in names)
            state[ours] = torch.cat([*parts])
    model.load_state_dict(state, assign=True)
    return Imported(model.eval(), found.without_token)


def _rows(
    folder: Path, config: T5Config, layout: T5Layout, found: SidVocabulary
) -> dict[int | None, int]:
    """Return the row of each token in the checkpoint, in the order of rows. If the tokens of a
    position do not follow each other in the folder, SIDs come first, by position and code."""
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


def _spec(
    config: T5Config, layout: T5Layout, found: SidVocabulary, rows: Mapping[int | None, int]
) -> dict[str, Any]:
    firsts = [tokens.of(1)[0] for tokens in found.sid_tokens]
    t5 = {
        **{ours: getattr(config, theirs) for ours, theirs in _KEYS.items()},
        "ffn": config.ffn,
        "history": layout.history,
        "token_offsets": [rows.get(first, first) for first in firsts],
        "prefix_tokens": [rows.get(token, token) for token in layout.prefix_tokens],
        "eos_token": rows.get(layout.eos_token, layout.eos_token),
    }
    extra = [config.vocab_size - size for size in found.vocab_sizes]
    decoder = {
        **{each.name: t5[each.name] for each in fields(DecoderSpec) if each.name in t5},
        "layers": config.num_decoder_layers or config.num_layers,
        "extra_head_rows": extra if layout.normalizer == "all" else [],
    }
    return {
        "sid_space": layout.sid_space,
        "vocab_sizes": found.vocab_sizes,
        "inputs": {layout.history: {"kind": "sequence", "max_length": layout.max_history}},
        "encoder": {"t5": t5},
        "decoder": decoder,
    }


def _parts(ours: str, config: T5Config) -> list[str]:
    """Return the T5 names of what one of our weights concatenates."""
    stack, _, rest = ours.partition(".")
    if rest == "final_norm":
        return [f"{stack}.final_layer_norm.weight"]
    if rest == "bias":  # the first layer has it, and the others share it
        return [f"{stack}.block.0.layer.0.SelfAttention.{_BIAS}"]
    _, layer, kind = rest.split(".")
    place, names = _LAYER[kind]
    if kind == "ffn_in" and config.ffn == "gated_gelu":
        names = ("DenseReluDense.wi_0", "DenseReluDense.wi_1")
    place = min(place, 1) if stack == "encoder" else place
    return [f"{stack}.block.{layer}.layer.{place}.{name}.weight" for name in names]


def _by_step(
    tensors: HfTensors, config: T5Config, spec: EncoderDecoderSpec, rows: Mapping[int | None, int]
) -> dict[str, Tensor]:
    """Divide the shared vocabulary and the decoder's relative bias among the steps."""
    count, furthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    bias = tensors.take(_parts("decoder.bias", config)[0], count, config.num_heads)
    buckets = distance_buckets(torch.arange(spec.sid_length), count, furthest)  # back from a token
    shape, order = (config.vocab_size, config.d_model), [*rows]
    embed = tensors.take_tied(_DECODER_TOKENS, _TOKENS, *shape)[order]
    history = tensors.take_tied(_ENCODER_TOKENS, _TOKENS, *shape)[order]
    # A file that says untied must have a head. A file that says tied may have one: newer versions
    # of transformers write "tied" for every T5 and let the weights decide.
    tied_to = _HEAD if config.tie_word_embeddings is False else _TOKENS
    head = tensors.take_tied(_HEAD, tied_to, *shape)[order] * config.head_scale
    assert spec.packing is not None
    length, widest, extra = spec.sid_length, max(spec.vocab_sizes), spec.decoder.extra_head_rows
    inputs = embed.new_zeros(length - 1, widest, config.d_model)
    heads = head.new_zeros(length, widest + max(extra, default=0), config.d_model)
    for t, tokens in enumerate(spec.packing.codes):
        own, size = torch.tensor(tokens), len(tokens)
        heads[t, :size] = head[own]
        if extra:
            other = torch.ones(config.vocab_size, dtype=torch.bool).index_fill(0, own, False)
            heads[t, widest : widest + config.vocab_size - size] = head[other]
        if t + 1 < length:
            inputs[t, :size] = embed[own]
    return {
        "features.embed": history,
        "decoder.start": embed[rows[config.decoder_start_token_id]].clone(),
        "decoder.embed": inputs,
        "decoder.head": heads,
        "decoder.bias": bias[buckets].T.contiguous(),
    }


@dataclass(slots=True)
class _Places(HfTensors):
    """The tensors of a folder to write. Each number is that of its place; 0 is no place."""

    taken: dict[str, Tensor] = field(default_factory=dict)
    end: int = 1

    def __contains__(self, name: str) -> bool:
        return True

    def take(self, name: str, *shape: int) -> Tensor:
        begin, self.end = self.end, self.end + math.prod(shape)
        self.taken[name] = torch.arange(begin, self.end, dtype=torch.float64).view(shape)
        return self.taken[name]


def export_t5(checkpoint: Path, out: Path) -> T5Layout:
    """Write float32 weights. Return the layout with which `import_t5` reads the folder."""
    model = load_encoder_decoder(checkpoint)
    if not isinstance(model.encoder, T5Encoder):
        fault = "encoder: interformer, but T5 reads SIDs of one history only; train with encoder t5"
        raise CheckpointError(str(checkpoint / MODEL_YAML), fault)
    spec, encoder, state = model.spec, model.encoder.spec, model.state_dict()
    layout = T5Layout(
        spec.sid_space,
        offsets=encoder.token_offsets,
        vocab_sizes=spec.vocab_sizes,
        normalizer="all" if spec.decoder.extra_head_rows else "level",
        prefix_tokens=encoder.prefix_tokens,
        eos_token=encoder.eos_token,
        history=encoder.history,
        max_history=spec.sequences[encoder.history].max_length,
    )
    # Decoding may begin with any token that no step reads, or else with a code whose embedding is
    # the decoder's start. Prefer a token that has this embedding in the encoder.
    starts = torch.tensor([2 + row.equal(model.decoder.start) for row in state["features.embed"]])
    for first, size in zip(encoder.token_offsets[:-1], spec.vocab_sizes, strict=False):
        starts[first : first + size] %= 2
    start = {"decoder_start_token_id": int(starts.argmax())}
    values = {
        "model_type": "t5",
        **{theirs: getattr(encoder, ours) for ours, theirs in _KEYS.items()},
        "num_decoder_layers": spec.decoder.layers,
        "feed_forward_proj": encoder.ffn.replace("_", "-"),
        "tie_word_embeddings": False,
        **start,
    }
    places = _Places(out, {}, set(), None)
    config = load_section(T5Config, values, str(checkpoint / MODEL_YAML))
    imported = _import(places, config, layout).model
    for key, theirs in asdict(imported.spec.decoder).items():
        ours = getattr(spec.decoder, key)
        if ours != theirs and key != "scale_scores":
            fault = f"decoder.{key}: {ours}, but {theirs} in a T5 with this encoder; train with it"
            raise CheckpointError(str(checkpoint / MODEL_YAML), fault)
    for stack, sizes in (("encoder", encoder), ("decoder", spec.decoder)):
        for name in state:
            if sizes.scale_scores and name.startswith(stack) and name.endswith(("qkv", "cross_q")):
                state[name][: sizes.heads * sizes.d_head] *= sizes.d_head**-0.5
    tensors = _tensors(places, imported.state_dict(), state, checkpoint / WEIGHTS)
    if torch.equal(tensors[_HEAD], tensors[_TOKENS] * encoder.d_model**-0.5):
        del tensors[_HEAD]
        values["tie_word_embeddings"] = True
    special = {**start, "pad_token_id": start["decoder_start_token_id"]}
    values |= {"architectures": ["T5ForConditionalGeneration"], "eos_token_id": None, **special}
    generation = {**special, "max_new_tokens": spec.sid_length}
    # In transformers 5, a cache has as many layers as the encoder.
    generation["use_cache"] = encoder.layers == spec.decoder.layers
    with whole_folder(out) as folder:
        for name, content in ((CONFIG, values), (_GENERATION, generation)):
            (folder / name).write_text(json.dumps(content, indent=1) + "\n")
        write_weights(folder / WEIGHTS, tensors)
    return layout


def _tensors(
    places: _Places, found: Mapping[str, Tensor], state: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    """Put each number where the import finds it. Elsewhere are zeros, or the encoder's rows."""
    numbers = torch.full((places.end,), torch.nan)
    for name, place in found.items():
        numbers[place.long()] = state[name]
    for name, place in found.items():
        if ((numbers[place.long()] != state[name]) & (place > 0)).any():
            fault = f"tensor {name!r}: differs between codes or distances that share a row in T5"
            remedy = "train with token_offsets and relative_buckets that keep them apart"
            raise CheckpointError(str(file), f"{fault}; {remedy}")
    tensors = {name: numbers[place.long()] for name, place in places.taken.items()}
    tensors[_TOKENS] = shared = tensors.pop(_ENCODER_TOKENS)
    inputs = tensors[_DECODER_TOKENS]
    tensors[_DECODER_TOKENS] = inputs = torch.where(inputs.isnan(), shared, inputs)
    if torch.equal(inputs, shared):
        del tensors[_DECODER_TOKENS]
    return {name: tensor.nan_to_num() for name, tensor in tensors.items()}
