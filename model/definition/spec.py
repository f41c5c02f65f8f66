"""model.yaml: everything about a model that is not a weight.

sid_space: synth-demo-1
vocab_sizes: [64, 64, 64, 64]
inputs:
  hour:   {kind: dense}
  device: {kind: categorical, cardinality: 40}
  pages:  {kind: bag, hash_rows: 1000000}
  clicks: {kind: sequence, max_length: 256, side: {action: 8}}
encoder:
  interformer: {blocks: 3, d_model: 512, heads: 8, d_ff: 1024, context_tokens: 128}
decoder: {layers: 3, d_model: 2048, heads: 16, d_head: 128, d_ff: 512}
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from grace.configs.errors import ConfigError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.snapshot import MAX_VOCAB_SIZE, is_sid_space

__all__ = [
    "BagInput",
    "CategoricalInput",
    "DecoderSpec",
    "DenseInput",
    "EncoderSpec",
    "Ffn",
    "InputSpec",
    "InterFormerSpec",
    "ModelSpec",
    "SequenceInput",
    "T5EncoderSpec",
    "load_spec",
    "parse_spec",
]

MAX_HISTORY = 1 << 14  # events of a t5 history

Ffn = Literal["relu", "gated_gelu"]


@dataclass(frozen=True, slots=True)
class DenseInput:
    """`size` numbers; `default` where a request has none, zeros if not given."""

    size: int = 1
    default: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CategoricalInput:
    """One id of 0 .. cardinality - 1."""

    cardinality: int
    default: int = 0


@dataclass(frozen=True, slots=True)
class BagInput:
    """Any number of 64-bit ids, hashed to `hash_rows` rows; `default` where a request has none."""

    hash_rows: int
    default: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Events, oldest first: a SID each, an optional time, and side ids with their cardinalities.

    The most recent `max_length` are used. A request without events has an empty sequence.
    """

    max_length: int
    side: dict[str, int]


InputSpec: TypeAlias = DenseInput | CategoricalInput | BagInput | SequenceInput

_KINDS: dict[str, type[InputSpec]] = {
    "dense": DenseInput,
    "categorical": CategoricalInput,
    "bag": BagInput,
    "sequence": SequenceInput,
}


@dataclass(frozen=True, slots=True)
class T5EncoderSpec:
    """TIGER's: the history's SIDs as tokens of one vocabulary of `num_tokens`.

    The token of value v at SID position t is token_offsets[t] + v. `prefix_tokens` come before the
    history, `eos_token` after it.
    """

    layers: int
    d_model: int
    heads: int
    d_head: int
    d_ff: int
    history: str
    num_tokens: int
    token_offsets: tuple[int, ...]
    prefix_tokens: tuple[int, ...] = ()
    eos_token: int | None = None
    ffn: Ffn = "relu"
    scale_scores: bool = False
    relative_buckets: int = 32
    relative_max_distance: int = 128
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class InterFormerSpec:
    """The paper's: non-sequence tokens and event sequences that exchange summaries."""

    blocks: int
    d_model: int
    heads: int
    d_ff: int
    context_tokens: int
    non_sequence_tokens: int = 32
    summary_tokens: int = 4
    bag_dim: int = 128
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Exactly one of the two."""

    t5: T5EncoderSpec | None = None
    interformer: InterFormerSpec | None = None


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The T5 family. `extra_head_rows` of each step are logits that only enter its normaliser."""

    layers: int
    d_model: int
    heads: int
    d_head: int
    d_ff: int
    ffn: Ffn = "relu"
    scale_scores: bool = False
    extra_head_rows: tuple[int, ...] = ()  # none
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class ModelSpec:
    sid_space: str
    vocab_sizes: tuple[int, ...]
    inputs: dict[str, InputSpec]
    encoder: EncoderSpec
    decoder: DecoderSpec

    def __post_init__(self) -> None:
        _check(self)

    @property
    def sid_length(self) -> int:
        return len(self.vocab_sizes)

    @property
    def context_tokens(self) -> int:
        """T_ctx: as many for every request; a key mask tells which are there."""
        t5, interformer = self.encoder.t5, self.encoder.interformer
        if interformer is not None:
            return interformer.context_tokens
        assert t5 is not None
        history = self.inputs[t5.history]
        assert isinstance(history, SequenceInput)
        eos = 0 if t5.eos_token is None else 1
        return len(t5.prefix_tokens) + history.max_length * self.sid_length + eos

    @property
    def context_dim(self) -> int:
        encoder = self.encoder.t5 or self.encoder.interformer
        assert encoder is not None
        return encoder.d_model

    def to_json(self) -> dict[str, Any]:
        """What `parse_spec` reads back as the same."""
        kinds = {cls: kind for kind, cls in _KINDS.items()}
        inputs = {n: {"kind": kinds[type(i)], **asdict(i)} for n, i in self.inputs.items()}
        encoder = {name: value for name, value in asdict(self.encoder).items() if value}
        return {
            "sid_space": self.sid_space,
            "vocab_sizes": self.vocab_sizes,
            "inputs": inputs,
            "encoder": encoder,
            "decoder": asdict(self.decoder),
        }


@dataclass(frozen=True, slots=True)
class _Rest:
    """model.yaml without its inputs, whose kinds are told apart apart."""

    sid_space: str
    vocab_sizes: tuple[int, ...]
    encoder: EncoderSpec
    decoder: DecoderSpec


def load_spec(path: Path) -> ModelSpec:
    return parse_spec(read_yaml(path), str(path))


def parse_spec(values: Mapping[str, Any], source: str) -> ModelSpec:
    """The specification in `values`; errors open with `source`."""
    written = dict(values)
    inputs = written.pop("inputs", None)
    try:
        rest = load_section(_Rest, written)
        return ModelSpec(
            rest.sid_space, rest.vocab_sizes, _inputs(inputs), rest.encoder, rest.decoder
        )
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _inputs(written: Any) -> dict[str, InputSpec]:
    if not isinstance(written, Mapping) or not written:
        raise ConfigError("inputs: declare at least one, as name: {kind: ...}")
    inputs: dict[str, InputSpec] = {}
    for name, fields in written.items():
        kind = fields.get("kind") if isinstance(fields, Mapping) else None
        if kind not in _KINDS:
            raise ConfigError(f"inputs.{name}.kind: expected one of {', '.join(_KINDS)}")
        rest = {key: value for key, value in fields.items() if key != "kind"}
        if kind == "sequence":
            rest.setdefault("side", {})
        inputs[name] = load_section(_KINDS[kind], rest, f"inputs.{name}")
    return inputs


def _check(spec: ModelSpec) -> None:
    if not is_sid_space(spec.sid_space):
        raise ConfigError(
            f"sid_space: expected 1 to 255 printable characters, got {spec.sid_space[:80]!r}"
        )
    sizes = spec.vocab_sizes
    if not sizes or not 1 <= min(sizes) <= max(sizes) <= MAX_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_sizes: expected sizes of 1 to {MAX_VOCAB_SIZE}, one per position, "
            f"got {list(sizes)}"
        )
    extra = spec.decoder.extra_head_rows
    if extra and (len(extra) != len(sizes) or min(extra) < 0):
        raise ConfigError(
            f"decoder.extra_head_rows: expected {len(sizes)} numbers, 0 or more, got {list(extra)}"
        )
    for name, value in spec.inputs.items():
        _check_input(f"inputs.{name}", value)
        for inner in (name, *(value.side if isinstance(value, SequenceInput) else ())):
            if not inner or "." in inner:
                raise ConfigError(f"inputs.{name}: a name is not empty and has no dot: {inner!r}")
    t5, interformer = spec.encoder.t5, spec.encoder.interformer
    if (t5 is None) == (interformer is None):
        raise ConfigError("encoder: exactly one of t5, interformer")
    for where, section in (
        ("decoder", spec.decoder),
        ("encoder.t5", t5),
        ("encoder.interformer", interformer),
    ):
        if section is not None:
            _check_sizes(where, section)
    if t5 is not None:
        _check_t5(spec, t5)
    elif interformer is not None and interformer.d_model % interformer.heads:
        raise ConfigError(
            f"encoder.interformer: d_model {interformer.d_model} is not a multiple of "
            f"{interformer.heads} heads"
        )


def _check_sizes(where: str, section: DecoderSpec | T5EncoderSpec | InterFormerSpec) -> None:
    """Every number of a section is a size, but for these."""
    fields = asdict(section)
    least = {"relative_buckets": 4}
    for name, value in fields.items():
        if name == "norm_eps":
            if value <= 0:
                raise ConfigError(f"{where}.norm_eps: must be above 0, got {value}")
        elif type(value) is int and name != "eos_token" and value < least.get(name, 1):
            raise ConfigError(f"{where}.{name}: must be at least {least.get(name, 1)}, got {value}")
    if isinstance(section, T5EncoderSpec):
        half = section.relative_buckets // 2  # of the buckets for each direction
        if section.relative_max_distance <= half // 2:
            raise ConfigError(
                f"{where}.relative_max_distance: must be above {half // 2} with "
                f"{section.relative_buckets} relative_buckets, got {section.relative_max_distance}"
            )


def _check_input(where: str, value: InputSpec) -> None:
    if isinstance(value, DenseInput):
        _check_positive(where, asdict(value), ("size",))
        if value.default and len(value.default) != value.size:
            raise ConfigError(f"{where}.default: expected {value.size} numbers")
        if not all(map(math.isfinite, value.default)):
            raise ConfigError(f"{where}.default: must be finite, got {list(value.default)}")
    elif isinstance(value, CategoricalInput):
        _check_positive(where, asdict(value), ("cardinality",))
        if not 0 <= value.default < value.cardinality:
            raise ConfigError(f"{where}.default: must be 0 to {value.cardinality - 1}")
    elif isinstance(value, BagInput):
        _check_positive(where, asdict(value), ("hash_rows",))
        if any(not -(2**63) <= bag_id < 2**63 for bag_id in value.default):
            raise ConfigError(
                f"{where}.default: ids are 64-bit integers, got {list(value.default)}"
            )
    else:
        _check_positive(where, asdict(value), ("max_length",))
        _check_positive(f"{where}.side", value.side, tuple(value.side))


def _check_t5(spec: ModelSpec, t5: T5EncoderSpec) -> None:
    history = spec.inputs.get(t5.history)
    if isinstance(history, SequenceInput) and history.max_length > MAX_HISTORY:
        raise ConfigError(
            f"inputs.{t5.history}.max_length: at most {MAX_HISTORY} for t5, whose every token is "
            f"attended to, got {history.max_length}"
        )
    if not isinstance(history, SequenceInput):
        raise ConfigError(f"encoder.t5.history: {t5.history!r} is not an input of kind sequence")
    if history.side:
        raise ConfigError(
            f"inputs.{t5.history}.side: t5 reads the SIDs of its history only; remove it, or use "
            "interformer"
        )
    others = sorted(set(spec.inputs) - {t5.history})
    if others:
        raise ConfigError(
            f"inputs.{others[0]}: t5 reads its history only; remove it, or use interformer"
        )
    if len(t5.token_offsets) != spec.sid_length:
        raise ConfigError(
            f"encoder.t5.token_offsets: expected {spec.sid_length}, got {len(t5.token_offsets)}"
        )
    ends = [o + v for o, v in zip(t5.token_offsets, spec.vocab_sizes, strict=True)]
    special = [t for t in (*t5.prefix_tokens, t5.eos_token) if t is not None]
    largest = max((*ends, *(token + 1 for token in special)))
    if min((*t5.token_offsets, *special)) < 0 or largest > t5.num_tokens:
        raise ConfigError(
            f"encoder.t5.num_tokens: {t5.num_tokens}, but its tokens reach {largest - 1}"
        )


def _check_positive(where: str, fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if fields[name] < 1:
            raise ConfigError(f"{where}.{name}: must be at least 1, got {fields[name]}")
