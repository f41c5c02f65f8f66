"""Read a Hugging Face T5 folder without `transformers`: its configuration and its tensors by name.

It reads config.json, generation_config.json and safetensors weights, sharded or not. It refuses by
name every setting that GRACE's T5 does not compute. Dropout is for training only and is ignored.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.configs.errors import CheckpointError, ConfigError, InputError
from grace.configs.sections import load_section
from grace.model.checkpoints.weights_file import PICKLE_REMEDY, Weights, open_weights
from grace.model.definition.spec import Ffn

CONFIG = "config.json"

_GENERATION = "generation_config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 64 << 20
_FFNS: dict[str, tuple[Ffn, str]] = {
    "relu": ("relu", "relu"),
    "gated-gelu": ("gated_gelu", "gelu_new"),
}
_OPTIONAL = frozenset(
    {
        # Old files have it; transformers ignores it too.
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        # Unused where the file contains each of the three tensors that are tied to it.
        "shared.weight",
    }
)


@dataclass(frozen=True, slots=True)
class T5Config:
    """The keys of config.json that affect the model's function, with T5's defaults."""

    model_type: str
    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_decoder_layers: int | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    decoder_start_token_id: int | None = None

    @property
    def ffn(self) -> Ffn:
        return _FFNS[self.feed_forward_proj][0]

    @property
    def decoder_layers(self) -> int:
        given = self.num_decoder_layers
        return self.num_layers if given is None else given

    @property
    def inner(self) -> int:
        return self.num_heads * self.d_kv

    @property
    def head_scale(self) -> float:
        """T5 scales the input of a tied head. Only newer files have a key for that."""
        scaled = self.scale_decoder_outputs
        if scaled is None:
            scaled = self.tie_word_embeddings is not False
        return self.d_model**-0.5 if scaled else 1.0


class T5Tensors:
    """The folder's tensors by name. It checks their shapes, and knows which ones are unused."""

    def __init__(self, folder: Path, files: Iterable[Weights]) -> None:
        self._folder = folder
        self._owners = {name: file for file in files for name in file.entries}
        self._unused = set(self._owners) - _OPTIONAL

    def __contains__(self, name: str) -> bool:
        return name in self._owners

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in float32, on the CPU."""
        if name not in self._owners:
            raise CheckpointError(
                str(self._folder), f"missing tensor {name!r} {list(shape)}, which {CONFIG} asks for"
            )
        file = self._owners[name]
        found = file.entries[name].shape
        if found != shape:
            fault = f"tensor {name!r} must be {list(shape)} by {CONFIG}, got {list(found)}"
            raise CheckpointError(str(file.path), fault)
        self._unused.discard(name)
        return file.read(name, torch.float32)

    def take_tied(self, name: str, source: str, *shape: int) -> Tensor:
        """Return `name` if the folder has it, else the tensor that it is tied to."""
        return self.take(name if name in self else source, *shape)

    def require_all_used(self) -> None:
        for name in sorted(self._unused):
            raise CheckpointError(
                str(self._owners[name].path),
                f"unexpected tensor {name!r}: a T5ForConditionalGeneration by {CONFIG} has none",
            )


def read_config(folder: Path) -> T5Config:
    """Read and check config.json. Its `decoder_start_token_id` is what `generate` starts with."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no Hugging Face folder here: expected one with {CONFIG}")
    path = folder / CONFIG
    written = dict(_read_json(path))
    if (folder / _GENERATION).exists():
        chosen = _read_json(folder / _GENERATION).get("decoder_start_token_id")
        if chosen is not None:
            written["decoder_start_token_id"] = chosen
    known = {field.name for field in fields(T5Config)}
    config = load_section(T5Config, {k: v for k, v in written.items() if k in known}, str(path))
    _require_supported(path, config)
    _require_sizes(path, config)
    start = config.decoder_start_token_id
    if start is None or not 0 <= start < config.vocab_size:
        raise ConfigError(
            f"{path}: decoder_start_token_id: expected 0 to {config.vocab_size - 1}, got {start}; "
            "write there the token that decoding begins with"
        )
    return config


@contextmanager
def open_tensors(folder: Path) -> Iterator[T5Tensors]:
    with ExitStack() as files:
        yield T5Tensors(folder, [files.enter_context(open_weights(p)) for p in _shards(folder)])


def _require_supported(path: Path, config: T5Config) -> None:
    if config.model_type != "t5":
        raise ConfigError(f"{path}: model_type: {config.model_type!r}; only 't5' is imported")
    if not config.is_encoder_decoder:
        raise ConfigError(f"{path}: is_encoder_decoder: must be true: both halves are needed")
    if config.feed_forward_proj not in _FFNS:
        raise ConfigError(
            f"{path}: feed_forward_proj: {config.feed_forward_proj!r} is not supported; "
            f"supported are {', '.join(_FFNS)}"
        )
    # In transformers, these two override feed_forward_proj.
    ffn, activation = _FFNS[config.feed_forward_proj]
    for key, implied in (("dense_act_fn", activation), ("is_gated_act", ffn == "gated_gelu")):
        written = getattr(config, key)
        if written not in (None, implied):
            raise ConfigError(
                f"{path}: {key}: {written!r} is not supported with feed_forward_proj "
                f"{config.feed_forward_proj!r}, which means {implied!r}"
            )


def _require_sizes(path: Path, config: T5Config) -> None:
    least = {
        "vocab_size": 1,
        "d_model": 1,
        "d_kv": 1,
        "d_ff": 1,
        "num_layers": 1,
        "num_heads": 1,
        "decoder_layers": 1,
        "relative_attention_num_buckets": 4,  # the encoder halves them for the two directions
    }
    for key, smallest in least.items():
        if getattr(config, key) < smallest:
            named = "num_decoder_layers" if key == "decoder_layers" else key
            raise ConfigError(
                f"{path}: {named}: must be at least {smallest}, got {getattr(config, key)}"
            )
    if config.relative_attention_max_distance <= config.relative_attention_num_buckets // 2:
        raise ConfigError(
            f"{path}: relative_attention_max_distance: must be above half of the "
            f"{config.relative_attention_num_buckets} buckets, "
            f"got {config.relative_attention_max_distance}"
        )


def _shards(folder: Path) -> list[Path]:
    if (folder / _WEIGHTS).exists():
        return [folder / _WEIGHTS]
    if not (folder / _INDEX).exists():
        for pickle in sorted([*folder.glob("*.bin"), *folder.glob("*.pt")]):
            raise CheckpointError(str(pickle), PICKLE_REMEDY)
        raise CheckpointError(str(folder / _WEIGHTS), "missing")
    owners = _read_json(folder / _INDEX).get("weight_map")
    names: set[str] = set()
    for name in owners.values() if isinstance(owners, dict) else (owners,):
        if not isinstance(name, str) or Path(name).name != name:
            fault = f"weight_map: expected names of files in this folder, got {name!r}"
            raise CheckpointError(str(folder / _INDEX), fault)
        names.add(name)
    return [folder / name for name in sorted(names)]


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > _MAX_JSON_BYTES:
        raise ConfigError(f"{path}: larger than {_MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object")
    return value
