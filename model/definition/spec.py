"""model.yaml: everything about a model except its weights. docs/model.md explains every key.

inputs:  {hour: {kind: dense}, clicks: {kind: sequence, max_length: 256, side: {action: 8}}}
encoder: {interformer: {blocks: 3, d_model: 512, heads: 8, d_ff: 1024, context_tokens: 128}}
decoder: {layers: 3, d_model: 2048, heads: 16, d_head: 128, d_ff: 512}

and `sid_space` and `vocab_sizes`, which must be the snapshot's.
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

MAX_HISTORY = 1 << 14  # events: in a t5 history, every token attends to every other

Ffn = Literal["relu", "gated_gelu"]


@dataclass(frozen=True, slots=True)
class DenseInput:
    """`size` numbers. A request without them gets `default`, or zeros if that is empty."""

    size: int = 1
    default: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CategoricalInput:
    """One id from 0 to cardinality - 1."""

    cardinality: int
    default: int = 0


@dataclass(frozen=True, slots=True)
class BagInput:
    """64-bit ids, hashed to `hash_rows` rows. A request without any gets `default`."""

    hash_rows: int
    default: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """Events, oldest first. Each has a SID, an optional time, and side ids with cardinalities.

    The model reads the `max_length` most recent events.
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
    """TIGER's encoder: it reads the history's SIDs as tokens of one vocabulary of `num_tokens`.

    Value v at SID position t is token token_offsets[t] + v. `prefix_tokens` come before the
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
    """The paper's encoder: non-sequence tokens and event sequences that exchange summaries."""

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
    """Exactly one of the two is given."""

    t5: T5EncoderSpec | None = None
    interformer: InterFormerSpec | None = None


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder of the T5 family. A step's `extra_head_rows` only enter its normaliser."""

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
        """T_ctx, the same for every request. A key mask marks the tokens that a request has."""
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
        """Return the values that `parse_spec` turns into an equal specification."""
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
class _SpecWithoutInputs:
    """The sections of model.yaml that have one type each; an input's type depends on its kind."""

    sid_space: str
    vocab_sizes: tuple[int, ...]
    encoder: EncoderSpec
    decoder: DecoderSpec


def load_spec(path: Path) -> ModelSpec:
    return parse_spec(read_yaml(path), str(path))


def parse_spec(values: Mapping[str, Any], source: str) -> ModelSpec:
    """Return the checked specification in `values`. Errors start with `source`."""
    written = dict(values)
    inputs = written.pop("inputs", None)
    try:
        rest = load_section(_SpecWithoutInputs, written)
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
    sizes, extra = spec.vocab_sizes, spec.decoder.extra_head_rows
    if not is_sid_space(spec.sid_space):
        raise ConfigError(
            f"sid_space: expected 1 to 255 printable characters, got {spec.sid_space[:80]!r}"
        )
    if not sizes or not 1 <= min(sizes) <= max(sizes) <= MAX_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_sizes: expected sizes of 1 to {MAX_VOCAB_SIZE}, one per position, "
            f"got {list(sizes)}"
        )
    if extra and (len(extra) != len(sizes) or min(extra) < 0):
        raise ConfigError(
            f"decoder.extra_head_rows: expected {len(sizes)} numbers, 0 or more, got {list(extra)}"
        )
    for name, value in spec.inputs.items():
        _check_input(name, value)
    _check_sizes("decoder", spec.decoder)
    t5, interformer = spec.encoder.t5, spec.encoder.interformer
    if t5 is not None and interformer is None:
        _check_sizes("encoder.t5", t5)
        _check_t5(spec, t5)
    elif interformer is not None and t5 is None:
        _check_sizes("encoder.interformer", interformer)
        if interformer.d_model % interformer.heads:
            raise ConfigError(
                f"encoder.interformer: d_model {interformer.d_model} is not a multiple of "
                f"{interformer.heads} heads"
            )
    else:
        raise ConfigError("encoder: exactly one of t5, interformer")


def _check_sizes(where: str, section: DecoderSpec | T5EncoderSpec | InterFormerSpec) -> None:
    """Every integer of a section is a size, except for `eos_token`."""
    for name, value in asdict(section).items():
        if name == "norm_eps":
            if value <= 0:
                raise ConfigError(f"{where}.norm_eps: must be above 0, got {value}")
        elif type(value) is int and name != "eos_token":
            _check_at_least(4 if name == "relative_buckets" else 1, f"{where}.{name}", value)


def _check_input(name: str, value: InputSpec) -> None:
    where = f"inputs.{name}"
    for each in (name, *(value.side if isinstance(value, SequenceInput) else ())):
        if not each or "." in each:
            raise ConfigError(f"{where}: a name is not empty and has no dot: {each!r}")
    match value:
        case DenseInput(size, default):
            _check_at_least(1, f"{where}.size", size)
            if default and len(default) != size:
                raise ConfigError(f"{where}.default: expected {size} numbers")
            if not all(map(math.isfinite, default)):
                raise ConfigError(f"{where}.default: must be finite, got {list(default)}")
        case CategoricalInput(cardinality, chosen):
            _check_at_least(1, f"{where}.cardinality", cardinality)
            if not 0 <= chosen < cardinality:
                raise ConfigError(f"{where}.default: must be 0 to {cardinality - 1}")
        case BagInput(hash_rows, ids):
            _check_at_least(1, f"{where}.hash_rows", hash_rows)
            if any(not -(2**63) <= bag_id < 2**63 for bag_id in ids):
                raise ConfigError(f"{where}.default: ids are 64-bit integers, got {list(ids)}")
        case SequenceInput(max_length, side):
            _check_at_least(1, f"{where}.max_length", max_length)
            for side_name, cardinality in side.items():
                _check_at_least(1, f"{where}.side.{side_name}", cardinality)


def _check_t5(spec: ModelSpec, t5: T5EncoderSpec) -> None:
    quarter = t5.relative_buckets // 4  # half of the buckets for each direction, half of them exact
    if t5.relative_max_distance <= quarter:
        raise ConfigError(
            f"encoder.t5.relative_max_distance: must be above {quarter} with "
            f"{t5.relative_buckets} relative_buckets, got {t5.relative_max_distance}"
        )
    history = spec.inputs.get(t5.history)
    if not isinstance(history, SequenceInput):
        raise ConfigError(f"encoder.t5.history: {t5.history!r} is not an input of kind sequence")
    if history.max_length > MAX_HISTORY:
        raise ConfigError(
            f"inputs.{t5.history}.max_length: at most {MAX_HISTORY} for t5, whose every token is "
            f"attended to, got {history.max_length}"
        )
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


def _check_at_least(least: int, where: str, value: int) -> None:
    if value < least:
        raise ConfigError(f"{where}: must be at least {least}, got {value}")
