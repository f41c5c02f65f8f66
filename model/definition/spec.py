"""model.yaml: everything about a model except its weights. docs/model.md explains every key.

inputs:  {hour: {kind: dense}, clicks: {kind: sequence, max_length: 256, side: {action: 8}}}
encoder: {interformer: {blocks: 3, d_model: 512, heads: 8, d_ff: 1024, context_tokens: 128}}
decoder: {layers: 3, d_model: 2048, heads: 16, d_head: 128, d_ff: 512}

and `sid_space` and `vocab_sizes`, which must be the snapshot's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from grace.configs.errors import ConfigError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, is_sid_space

MAX_HISTORY = 1 << 14  # events: in a t5 history, every token attends to every other

Ffn = Literal["relu", "gated_gelu"]


class _Section:
    """A section of model.yaml, which its constructor checks.

    Each integer must be at least 1, except the field that `not_a_size` names.
    """

    __slots__ = ()
    not_a_size: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if type(value) is int and value < 1 and each.name != self.not_a_size:
                raise ConfigError(f"{each.name}: must be at least 1, got {value}")
            if each.name == "norm_eps" and value <= 0:
                raise ConfigError(f"norm_eps: must be above 0, got {value}")
        for fault in self.faults():
            raise ConfigError(fault)

    def faults(self) -> Iterable[str]:
        """Yield the faults that valid sizes can still have."""
        return ()


@dataclass(frozen=True, slots=True)
class DenseInput(_Section):
    """`size` numbers. A request without them gets `default`, or zeros if that is empty."""

    kind: ClassVar[str] = "dense"
    size: int = 1
    default: tuple[float, ...] = ()

    def faults(self) -> Iterable[str]:
        if self.default and len(self.default) != self.size:
            yield f"default: expected {self.size} numbers"
        if not all(map(math.isfinite, self.default)):
            yield f"default: must be finite, got {list(self.default)}"


@dataclass(frozen=True, slots=True)
class CategoricalInput(_Section):
    """One id from 0 to cardinality - 1."""

    kind: ClassVar[str] = "categorical"
    not_a_size: ClassVar[str] = "default"
    cardinality: int
    default: int = 0

    def faults(self) -> Iterable[str]:
        if not 0 <= self.default < self.cardinality:
            yield f"default: must be 0 to {self.cardinality - 1}"


@dataclass(frozen=True, slots=True)
class BagInput(_Section):
    """64-bit ids, hashed to `hash_rows` rows. A request without any gets `default`."""

    kind: ClassVar[str] = "bag"
    hash_rows: int
    default: tuple[int, ...] = ()

    def faults(self) -> Iterable[str]:
        if any(not -(2**63) <= bag_id < 2**63 for bag_id in self.default):
            yield f"default: ids are 64-bit integers, got {list(self.default)}"


@dataclass(frozen=True, slots=True)
class SequenceInput(_Section):
    """Events, oldest first. Each has a SID, an optional time, and side ids with cardinalities.

    The model reads the `max_length` most recent events.
    """

    kind: ClassVar[str] = "sequence"
    max_length: int
    side: dict[str, int] = field(default_factory=dict)


InputSpec: TypeAlias = DenseInput | CategoricalInput | BagInput | SequenceInput
Kind = TypeVar("Kind", DenseInput, CategoricalInput, BagInput, SequenceInput)

_KINDS: dict[str, type[InputSpec]] = {
    each.kind: each for each in (DenseInput, CategoricalInput, BagInput, SequenceInput)
}


@dataclass(frozen=True, slots=True)
class T5EncoderSpec(_Section):
    """TIGER's encoder: it reads the history's SIDs as tokens of one vocabulary of `num_tokens`.

    Value v at SID position t is token token_offsets[t] + v. `prefix_tokens` come before the
    history, `eos_token` after it.
    """

    not_a_size: ClassVar[str] = "eos_token"
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

    def faults(self) -> Iterable[str]:
        if self.relative_buckets < 4:  # each direction has half, of which half are exact
            yield f"relative_buckets: must be at least 4, got {self.relative_buckets}"
        if self.relative_max_distance <= self.relative_buckets // 4:
            yield (
                f"relative_max_distance: must be above {self.relative_buckets // 4} with "
                f"{self.relative_buckets} relative_buckets, got {self.relative_max_distance}"
            )


@dataclass(frozen=True, slots=True)
class InterFormerSpec(_Section):
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

    def faults(self) -> Iterable[str]:
        if self.d_model % self.heads:
            yield f"d_model {self.d_model} is not a multiple of {self.heads} heads"


@dataclass(frozen=True, slots=True)
class EncoderSpec(_Section):
    t5: T5EncoderSpec | None = None
    interformer: InterFormerSpec | None = None

    def faults(self) -> Iterable[str]:
        if (self.t5 is None) == (self.interformer is None):
            yield "exactly one of t5, interformer"


@dataclass(frozen=True, slots=True)
class DecoderSpec(_Section):
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


@dataclass(frozen=True, slots=True)
class _SpecWithoutInputs:
    """The sections of model.yaml without the inputs, whose types depend on their kinds."""

    sid_space: str
    vocab_sizes: tuple[int, ...]
    encoder: EncoderSpec
    decoder: DecoderSpec


@dataclass(frozen=True)
class ModelSpec(_Section):
    sid_space: str
    vocab_sizes: tuple[int, ...]
    inputs: dict[str, InputSpec]
    encoder: EncoderSpec
    decoder: DecoderSpec

    def faults(self) -> Iterable[str]:
        sizes, extra = self.vocab_sizes, self.decoder.extra_head_rows
        if not is_sid_space(self.sid_space):
            yield f"sid_space: expected 1 to 255 printable characters, got {self.sid_space[:80]!r}"
        if len(sizes) > MAX_SID_LENGTH:
            yield f"vocab_sizes: {len(sizes)} positions of a SID, at most {MAX_SID_LENGTH}"
        if not sizes or not 1 <= min(sizes) <= max(sizes) <= MAX_VOCAB_SIZE:
            yield (
                f"vocab_sizes: expected sizes of 1 to {MAX_VOCAB_SIZE}, one per position, "
                f"got {list(sizes)}"
            )
        if extra and (len(extra) != len(sizes) or min(extra) < 0):
            yield (
                f"decoder.extra_head_rows: expected {len(sizes)} numbers, 0 or more, "
                f"got {list(extra)}"
            )
        for name, value in self.inputs.items():
            sides = value.side if isinstance(value, SequenceInput) else {}
            for each in (name, *sides):
                if not each or "." in each:
                    yield f"inputs.{name}: a name is not empty and has no dot: {each!r}"
            for side, size in sides.items():
                if size < 1:
                    yield f"inputs.{name}.side.{side}: must be at least 1, got {size}"
        if self.encoder.t5 is not None:
            yield from _faults_of_t5(self, self.encoder.t5)

    @property
    def dense(self) -> dict[str, DenseInput]:
        return self._of_kind(DenseInput)

    @property
    def categorical(self) -> dict[str, CategoricalInput]:
        return self._of_kind(CategoricalInput)

    @property
    def bags(self) -> dict[str, BagInput]:
        return self._of_kind(BagInput)

    @property
    def sequences(self) -> dict[str, SequenceInput]:
        return self._of_kind(SequenceInput)

    def _of_kind(self, kind: type[Kind]) -> dict[str, Kind]:
        """Return the declared inputs of one kind, in the order of every batch."""
        return {name: value for name, value in self.inputs.items() if isinstance(value, kind)}

    @property
    def sid_length(self) -> int:
        return len(self.vocab_sizes)

    @property
    def context_tokens(self) -> int:
        """T_ctx, the same for every request. A key mask marks the tokens that a request has."""
        if self.encoder.interformer is not None:
            return self.encoder.interformer.context_tokens
        t5 = self.encoder.t5
        assert t5 is not None
        events = self.sequences[t5.history].max_length
        return len(t5.prefix_tokens) + events * self.sid_length + (t5.eos_token is not None)

    @property
    def context_dim(self) -> int:
        encoder = self.encoder.t5 or self.encoder.interformer
        assert encoder is not None
        return encoder.d_model

    def to_json(self) -> dict[str, Any]:
        """Return the values that `parse_spec` turns into an equal specification."""
        return {
            "sid_space": self.sid_space,
            "vocab_sizes": self.vocab_sizes,
            "inputs": {n: {"kind": i.kind, **asdict(i)} for n, i in self.inputs.items()},
            "encoder": {name: value for name, value in asdict(self.encoder).items() if value},
            "decoder": asdict(self.decoder),
        }


def load_spec(path: Path) -> ModelSpec:
    return parse_spec(read_yaml(path), str(path))


def parse_spec(values: Mapping[str, Any], source: str) -> ModelSpec:
    """Return the checked specification in `values`. Errors start with `source`."""
    written = dict(values)
    inputs = written.pop("inputs", None)
    try:
        rest = load_section(_SpecWithoutInputs, written)
        return ModelSpec(
            rest.sid_space, rest.vocab_sizes, parse_inputs(inputs), rest.encoder, rest.decoder
        )
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def parse_inputs(written: Any) -> dict[str, InputSpec]:
    if not isinstance(written, Mapping) or not written:
        raise ConfigError("inputs: declare at least one, as name: {kind: ...}")
    inputs: dict[str, InputSpec] = {}
    for name, values in written.items():
        kind = values.get("kind") if isinstance(values, Mapping) else None
        if kind not in _KINDS:
            raise ConfigError(f"inputs.{name}.kind: expected one of {', '.join(_KINDS)}")
        rest = {key: value for key, value in values.items() if key != "kind"}
        inputs[name] = load_section(_KINDS[kind], rest, f"inputs.{name}")
    return inputs


def _faults_of_t5(spec: ModelSpec, t5: T5EncoderSpec) -> Iterable[str]:
    history = spec.sequences.get(t5.history)
    if history is None:
        yield f"encoder.t5.history: {t5.history!r} is not an input of kind sequence"
    elif history.max_length > MAX_HISTORY:
        yield (
            f"inputs.{t5.history}.max_length: at most {MAX_HISTORY} for t5, whose every token is "
            f"attended to, got {history.max_length}"
        )
    elif history.side:
        yield (
            f"inputs.{t5.history}.side: t5 reads the SIDs of its history only; remove it, or use "
            "interformer"
        )
    for other in sorted(set(spec.inputs) - {t5.history}):
        yield f"inputs.{other}: t5 reads its history only; remove it, or use interformer"
    if len(t5.token_offsets) != spec.sid_length:
        yield f"encoder.t5.token_offsets: expected {spec.sid_length}, got {len(t5.token_offsets)}"
    last = [o + v - 1 for o, v in zip(t5.token_offsets, spec.vocab_sizes, strict=True)]
    special = [t for t in (*t5.prefix_tokens, t5.eos_token) if t is not None]
    lowest, largest = min((*t5.token_offsets, *special)), max((*last, *special))
    if lowest < 0 or largest >= t5.num_tokens:
        yield (
            f"encoder.t5.num_tokens: {t5.num_tokens}, but its tokens are {lowest} to {largest}; "
            f"{_remedy(lowest, largest)}"
        )


def _remedy(lowest: int, largest: int) -> str:
    if lowest < 0:
        return "tokens count from 0: correct token_offsets, prefix_tokens or eos_token"
    return f"set it to {largest + 1}, or correct token_offsets"
