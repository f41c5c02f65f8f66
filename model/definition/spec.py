"""model.yaml: everything about a model except its weights. docs/model.md explains every key.

inputs:  {hour: {kind: dense}, clicks: {kind: sequence, max_length: 256, side: {action: 8}}}
encoder: {interformer: {blocks: 3, d_model: 512, heads: 8, d_ff: 1024, context_tokens: 128}}
decoder: {layers: 3, d_model: 2048, heads: 16, d_head: 128, d_ff: 512}

and `sid_space` and `vocab_sizes`, which must be the snapshot's.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from grace.configs.options import Option
from grace.configs.sections import Section, load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, is_sid_space

MAX_HISTORY = 1 << 14  # events: in a t5 history, every token attends to every other

Ffn = Literal["relu", "gated_gelu"]

Size: TypeAlias = Annotated[int, Option(least=1)]
Depth: TypeAlias = Annotated[int, Option(least=1, most=1000)]  # each layer takes time to create
Epsilon: TypeAlias = Annotated[float, Option(above=0)]


@dataclass(frozen=True, slots=True)
class DenseInput(Section):
    """`size` numbers. A request without them gets `default`, or zeros if that is empty."""

    kind: Literal["dense"] = field(default="dense", kw_only=True)
    size: Size = 1
    default: tuple[float, ...] = ()

    def faults(self) -> Iterable[str]:
        if self.default and len(self.default) != self.size:
            yield f"default: expected {self.size} numbers"
        if not all(map(math.isfinite, self.default)):
            yield f"default: must be finite, got {list(self.default)}"


@dataclass(frozen=True, slots=True)
class CategoricalInput(Section):
    """One id from 0 to cardinality - 1."""

    kind: Literal["categorical"] = field(default="categorical", kw_only=True)
    cardinality: Size
    default: int = 0

    def faults(self) -> Iterable[str]:
        if not 0 <= self.default < self.cardinality:
            yield f"default: must be 0 to {self.cardinality - 1}"


@dataclass(frozen=True, slots=True)
class BagInput(Section):
    """64-bit ids, hashed to `hash_rows` rows. A request without any gets `default`."""

    kind: Literal["bag"] = field(default="bag", kw_only=True)
    hash_rows: Size
    default: tuple[int, ...] = ()

    def faults(self) -> Iterable[str]:
        if any(not -(2**63) <= bag_id < 2**63 for bag_id in self.default):
            yield f"default: ids are 64-bit integers, got {list(self.default)}"


@dataclass(frozen=True, slots=True)
class SequenceInput(Section):
    """Events, oldest first. Each has a SID, an optional time, and side ids with cardinalities.

    The model reads the `max_length` most recent events.
    """

    kind: Literal["sequence"] = field(default="sequence", kw_only=True)
    max_length: Size
    side: Annotated[dict[str, int], Option(least=1)] = field(default_factory=dict)


InputSpec: TypeAlias = DenseInput | CategoricalInput | BagInput | SequenceInput
Kind = TypeVar("Kind", DenseInput, CategoricalInput, BagInput, SequenceInput)


@dataclass(frozen=True, slots=True)
class T5EncoderSpec(Section):
    """TIGER's encoder: it reads the history's SIDs as tokens of one vocabulary of `num_tokens`.

    Value v at SID position t is token token_offsets[t] + v. `prefix_tokens` come before the
    history, `eos_token` after it.
    """

    layers: Depth
    d_model: Size
    heads: Size
    d_head: Size
    d_ff: Size
    history: str
    num_tokens: Size
    token_offsets: tuple[int, ...]
    prefix_tokens: tuple[int, ...] = ()
    eos_token: int | None = None
    ffn: Ffn = "relu"
    scale_scores: bool = False
    relative_buckets: Annotated[int, Option(least=4)] = 32  # half per direction, half of it exact
    relative_max_distance: Size = 128
    norm_eps: Epsilon = 1e-6

    def faults(self) -> Iterable[str]:
        if self.relative_max_distance <= self.relative_buckets // 4:
            yield (
                f"relative_max_distance: must be above {self.relative_buckets // 4} with "
                f"{self.relative_buckets} relative_buckets, got {self.relative_max_distance}"
            )


@dataclass(frozen=True, slots=True)
class InterFormerSpec(Section):
    """The paper's encoder: non-sequence tokens and event sequences that exchange summaries."""

    blocks: Depth
    d_model: Size
    heads: Size
    d_ff: Size
    context_tokens: Size
    non_sequence_tokens: Size = 32
    summary_tokens: Size = 4
    bag_dim: Size = 128
    norm_eps: Epsilon = 1e-6

    def faults(self) -> Iterable[str]:
        if self.d_model % self.heads:
            yield f"d_model {self.d_model} is not a multiple of {self.heads} heads"


@dataclass(frozen=True, slots=True)
class EncoderSpec(Section):
    t5: T5EncoderSpec | None = None
    interformer: InterFormerSpec | None = None

    def faults(self) -> Iterable[str]:
        if (self.t5 is None) == (self.interformer is None):
            yield "exactly one of t5, interformer"


@dataclass(frozen=True, slots=True)
class DecoderSpec(Section):
    """A decoder of the T5 family. A step's `extra_head_rows` only enter its normaliser."""

    layers: Depth
    d_model: Size
    heads: Size
    d_head: Size
    d_ff: Size
    ffn: Ffn = "relu"
    scale_scores: bool = False
    extra_head_rows: tuple[int, ...] = ()  # none
    norm_eps: Epsilon = 1e-6


@dataclass(frozen=True)
class ModelSpec(Section):
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
        if not self.inputs:
            yield "inputs: declare at least one, as name: {kind: ...}"
        for name, value in self.inputs.items():
            sides = value.side if isinstance(value, SequenceInput) else {}
            for each in (name, *sides):
                if not each or "." in each:
                    yield f"inputs.{name}: a name is not empty and has no dot: {each!r}"
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
        """Return the values that `load_section` turns into an equal specification."""
        values = asdict(self)
        values["encoder"] = {name: value for name, value in values["encoder"].items() if value}
        return values


def load_spec(path: Path) -> ModelSpec:
    return load_section(ModelSpec, read_yaml(path), str(path))


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
            f"set it to {largest + 1}, or correct token_offsets, prefix_tokens or eos_token"
        )
