"""model.yaml: everything about a model except its weights. docs/model.md explains every key.

Models of all families have `sid_space` and `vocab_sizes`, which must be the snapshot's, and inputs:

inputs:  {hour: {kind: dense}, clicks: {kind: sequence, max_length: 256, side: {action: 8}}}

`t5_spec.py` and `causal_spec.py` have the rest of each family.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from grace.configs.options import Option
from grace.configs.sections import Section
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, is_sid_space

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
class Packing:
    """How a model reads a history as tokens: `prefix`, those of the newest events, `suffix`."""

    history: str | None
    most_events: int
    codes: tuple[tuple[int, ...], ...]  # the token of each code, for every SID position
    num_tokens: int  # of the vocabulary
    most_tokens: int  # of a request
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    before: tuple[int, ...] = ()  # the SID of each event
    after: tuple[int, ...] = ()
    prompt: str | None = None  # the name under which a request may bring the tokens itself


@dataclass(frozen=True)
class ModelSpec(Section, ABC):
    """The keys that models of all families have."""

    sid_space: str
    vocab_sizes: tuple[int, ...]
    inputs: dict[str, InputSpec]

    def faults(self) -> Iterable[str]:
        sizes = self.vocab_sizes
        if not is_sid_space(self.sid_space):
            yield f"sid_space: expected 1 to 255 printable characters, got {self.sid_space[:80]!r}"
        if len(sizes) > MAX_SID_LENGTH:
            yield f"vocab_sizes: {len(sizes)} positions of a SID, at most {MAX_SID_LENGTH}"
        if not sizes or not 1 <= min(sizes) <= max(sizes) <= MAX_VOCAB_SIZE:
            yield (
                f"vocab_sizes: expected sizes of 1 to {MAX_VOCAB_SIZE}, one per position, "
                f"got {list(sizes)}"
            )
        for name, value in self.inputs.items():
            sides = value.side if isinstance(value, SequenceInput) else {}
            for each in (name, *sides):
                if not each or "." in each or each != each.encode(errors="ignore").decode():
                    yield f"inputs.{name}: a name is text, not empty, without a dot: {each!r}"

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
    @abstractmethod
    def encoder_kind(self) -> str:
        """Return the encoder's name, or the family's if it has none."""

    @property
    def input_kinds(self) -> dict[str, str]:
        """Return the names that a request's features may have, and their kinds."""
        return {name: declared.kind for name, declared in self.inputs.items()}

    @property
    def packing(self) -> Packing | None:
        """Return None if the model reads events as vectors, not as tokens."""
        return None

    @property
    def sid_length(self) -> int:
        return len(self.vocab_sizes)

    def to_json(self) -> dict[str, Any]:
        """Return the values that `load_section` turns into an equal specification."""
        return asdict(self)
