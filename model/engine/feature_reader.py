"""A batch's features as row numbers of tables, which C++ reads from the requests' bytes.

C++ does not hold the interpreter lock meanwhile. One table holds all tables of a kind, and every id
is the number of a row there. So a device looks up all inputs of a kind at once. Every shape depends
on the batch size alone, except that of the bags' ids.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.arrays import Room, Shape, new_arrays, rounded_room
from grace.configs.errors import ConfigError, RequestError
from grace.configs.machine import available_cores
from grace.model.definition.inputs import AGE_BUCKETS, JaggedIds, ModelInputs, SequenceEvents
from grace.model.definition.spec import ModelSpec, Packing
from grace.native.loader import declare
from grace.native.wire import field_number, read_batch

MOST_ROWS = 2**31 - 1  # int32 numbers the rows of all tables of a kind

_open = declare(
    "grace_features_open(int64, int64[], int64, int64, int32, int64[], int32[], int32, "
    "out uint64[])"
)
_add_input = declare("grace_features_add(uint64, int64, text, int64, int64[], int64, float32[])")
_close = declare("grace_features_close(uint64)")
_read = declare(
    "grace_features_read(uint64, int64[], out float32[,], out int32[,], out int32[], int64, "
    "out int32[], out int32[,,])"
)

_MOST_THREADS = 4
_CORES_PER_THREAD = 4  # fewer cores have other work, and waking a thread takes time, too


@dataclass(frozen=True, slots=True)
class FeatureLookups:
    """B requests, inputs of each kind in declared order."""

    dense: Tensor  # float32 [B, numbers]: as sent, or `squashed`
    categorical: Tensor  # int32 [B, inputs]: rows of the categorical tables
    bag_offsets: Tensor  # int32 [B * bags + 1]: a request's bags are neighbours
    # int32 [n]: rows of the bags' tables. A causal model has one bag: the tokens of its prompt, in
    # order
    bag_rows: Tensor
    # int32 [B, places, ids]: rows of the events' tables, their sum is the event's state; each
    # sequence has as many places as its longest and what is not there has the row of zeros, the
    # last
    events: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return self.dense, self.categorical, self.bag_offsets, self.bag_rows, self.events


@dataclass(frozen=True, slots=True)
class EventRows:
    """Where a sequence's events are in a batch, and where the tables of its ids begin."""

    places: slice
    tokens: tuple[int, ...]  # of each SID position
    age: int
    position: int
    side: tuple[int, ...]  # of each side input


def event_rows_of(spec: ModelSpec) -> tuple[tuple[EventRows, ...], int]:
    """Return the rows of each sequence of an InterFormer, and the row of zeros after all others."""
    row, place, found = 0, 0, []
    length, widest = len(spec.vocab_sizes), max(spec.vocab_sizes)
    for sequence in spec.sequences.values():
        tokens = tuple(row + widest * position for position in range(length))
        age = row + widest * length
        position = age + AGE_BUCKETS
        row = position + sequence.max_length
        side = []
        for cardinality in sequence.side.values():
            side.append(row)
            row += cardinality + 1
        places = slice(place, place + sequence.max_length)
        place = places.stop
        found.append(EventRows(places, tokens, age, position, tuple(side)))
    _require_numbered(row)
    return tuple(found), row


def squash(numbers: npt.NDArray[np.float32]) -> None:
    """Replace each number by sign(x) log(1 + |x|)."""
    np.copysign(np.log1p(np.abs(numbers)), numbers, out=numbers)


def table_begins(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the first row of each table, if tables of these sizes follow each other."""
    _require_numbered(sum(sizes))
    return np.cumsum([0, *sizes], dtype=np.int64)[: len(sizes)]


def _require_numbered(rows: int) -> None:
    if rows > MOST_ROWS:
        raise ConfigError(
            f"inputs: tables of one kind have {rows} rows together, at most {MOST_ROWS}: take a "
            "model of smaller tables"
        )


@dataclass(frozen=True, slots=True)
class ReadFeatures:
    """The features of a batch; a request with a fault has the row of an empty one."""

    inputs: FeatureLookups
    faults: tuple[RequestError | None, ...]
    # of each request: names that the model lacks, with their kind
    ignored: tuple[tuple[str, ...], ...]


class FeatureReader:
    """A reader of one model's features, which any thread may call."""

    def __init__(self, spec: ModelSpec, threads: int | None = None) -> None:
        self._numbers = sum(each.size for each in spec.dense.values())
        self._categorical = len(spec.categorical)
        packing = spec.packing
        self._prompt_room = packing.most_tokens if packing and packing.prompt else 0
        self._bags = len(spec.bags) + (self._prompt_room > 0)
        self._default_ids = sum(len(each.default) for each in spec.bags.values())
        self._places, self._ids, zeros = _event_shape(spec)
        threads = threads or max(1, min(_MOST_THREADS, available_cores() // _CORES_PER_THREAD))
        self._handle = _opened(spec, self._places, self._ids, zeros, threads)
        weakref.finalize(self, _close, self._handle).atexit = False
        _declare(self._handle, spec)

    def read(self, messages: Sequence[bytes], size: int, room: Room = new_arrays) -> ReadFeatures:
        """Return the features of RetrieveRequests, and up to `size` those of empty ones."""
        most = size * self._prompt_room
        if not most:  # every id takes a byte at least
            most = rounded_room(sum(map(len, messages)) + size * self._default_ids)
        shapes: list[Shape] = [
            (np.float32, (size, self._numbers)),
            (np.int32, (size, self._categorical)),
            (np.int32, (size * self._bags + 1,)),
            (np.int32, (most if self._bags else 0,)),
            (np.int32, (size, self._places, self._ids)),
        ]
        dense, categorical, bag_offsets, bag_rows, events = room(shapes)
        rows = (dense, categorical, bag_offsets, len(bag_rows), bag_rows, events)
        faults, ignored = read_batch(_read, self._handle, messages, size, *rows)
        made = (dense, categorical, bag_offsets, bag_rows[: bag_offsets[-1]], events)
        return ReadFeatures(FeatureLookups(*map(torch.from_numpy, made)), faults, ignored)


def read_inputs(spec: ModelSpec, messages: Sequence[bytes], size: int) -> ModelInputs:
    """Return the inputs of RetrieveRequests, or raise the RequestError of a faulty one."""
    read = FeatureReader(spec, threads=1).read(messages, size)
    for fault in filter(None, read.faults):
        raise fault
    return model_inputs_of(spec, read.inputs)


def _event_shape(spec: ModelSpec) -> tuple[int, int, int]:
    """Return the places of a request, the ids of a place, and the row of an empty place."""
    if packing := spec.packing:
        _require_numbered(packing.num_tokens)
        return 0 if packing.prompt else packing.most_tokens, 1, packing.num_tokens
    sequences, zeros = event_rows_of(spec)
    sides = max((len(each.side) for each in sequences), default=0)
    places = sequences[-1].places.stop if sequences else 0
    return places, 2 + spec.sid_length + sides, zeros


def _opened(spec: ModelSpec, places: int, ids: int, zeros: int, threads: int) -> int:
    parts: list[Sequence[int]] = [()] * 5
    if packing := spec.packing:
        codes = tuple(chain(*packing.codes))
        parts = [packing.prefix, packing.before, packing.after, packing.suffix, codes]
    counts, tokens = np.array([*map(len, parts)]), np.array([*chain(*parts)], np.int32)
    sizes, handle = np.array(spec.vocab_sizes, np.int64), np.zeros(1, np.uint64)
    _open(spec.sid_length, sizes, places, ids, zeros, counts, tokens, threads, handle)
    return int(handle[0])


def _declare(handle: int, spec: ModelSpec) -> None:
    """Add all inputs, in the form that native/src/features.cpp describes."""

    def add(path: str, name: str, numbers: Sequence[int], defaults: Sequence[float] = ()) -> None:
        ids, floats = np.array(numbers, np.int64), np.array(defaults, np.float32)
        number = field_number(f"features.{path}")
        _add_input(handle, number, name.encode(), len(ids), ids, len(floats), floats)

    for name, dense in spec.dense.items():
        add("dense", name, (), dense.default or (0.0,) * dense.size)
    begins = table_begins([each.cardinality for each in spec.categorical.values()]).tolist()
    for (name, one), begin in zip(spec.categorical.items(), begins, strict=True):
        add("categorical", name, (one.cardinality, one.default, begin))
    begins = table_begins([each.hash_rows for each in spec.bags.values()]).tolist()
    for (name, bag), begin in zip(spec.bags.items(), begins, strict=True):
        add("bags", name, (bag.hash_rows, begin, *bag.default))
    if packing := spec.packing:
        if packing.prompt:
            add("tokens", packing.prompt, (packing.num_tokens, packing.most_tokens))
        if packing.history:
            add("sequences", packing.history, (packing.most_events, 0, 0, 0))
        return
    for (name, sequence), rows in zip(spec.sequences.items(), event_rows_of(spec)[0], strict=True):
        places = (sequence.max_length, rows.places.start)
        add("sequences", name, (*places, rows.age, rows.position, *rows.tokens))
        for (side, cardinality), begin in zip(sequence.side.items(), rows.side, strict=True):
            add("sequences.{name}.side", side, (cardinality, begin))


def model_inputs_of(spec: ModelSpec, lookups: FeatureLookups) -> ModelInputs:
    """Return the inputs that these rows stand for: every id is again a row of its input's table."""
    sizes = [each.size for each in spec.dense.values()]
    begins = table_begins([each.cardinality for each in spec.categorical.values()])
    return ModelInputs(
        batch=len(lookups.events),
        dense=tuple(lookups.dense.split_with_sizes(sizes, dim=1)) if sizes else (),
        categorical=tuple((lookups.categorical - torch.from_numpy(begins)).unbind(dim=1)),
        bags=_bags_of(spec, lookups),
        sequences=_sequences_of(spec, lookups.events),
    )


def _bags_of(spec: ModelSpec, lookups: FeatureLookups) -> tuple[JaggedIds, ...]:
    if spec.packing and spec.packing.prompt:
        return (JaggedIds(lookups.bag_offsets.long(), lookups.bag_rows.long()),)
    begins = table_begins([each.hash_rows for each in spec.bags.values()]).tolist()
    lengths = lookups.bag_offsets.diff().view(len(lookups.events), len(begins))
    bag_of_each = torch.arange(len(begins)).repeat(len(lengths))
    bag_of_each = bag_of_each.repeat_interleave(lengths.flatten())
    return tuple(
        JaggedIds(_offsets(lengths[:, bag]), lookups.bag_rows[bag_of_each == bag].long() - begin)
        for bag, begin in enumerate(begins)
    )


def _sequences_of(spec: ModelSpec, events: Tensor) -> tuple[SequenceEvents, ...]:
    if spec.packing:
        return () if spec.packing.prompt else (_unpacked(spec.packing, events[:, :, 0]),)
    layout, zeros = event_rows_of(spec)
    return tuple(_sequence_of(rows, events[:, rows.places].long(), zeros) for rows in layout)


def _unpacked(packing: Packing, tokens: Tensor) -> SequenceEvents:
    ends, length = len(packing.prefix) + len(packing.suffix), len(packing.codes)
    counts = (tokens != packing.num_tokens).sum(dim=1) - ends
    places = torch.arange(tokens.shape[1]) - len(packing.prefix)
    history = tokens[(places >= 0) & (places < counts[:, None])]
    sids = history.view(-1, length) - torch.tensor([codes[0] for codes in packing.codes])
    no_ages = torch.zeros(len(sids), dtype=torch.int64)  # its features do not read them
    return SequenceEvents(_offsets(counts // length), sids, no_ages, ())


def _sequence_of(rows: EventRows, events: Tensor, zeros: int) -> SequenceEvents:
    live = events[:, :, 0] != zeros
    age, _, *ids = events[live].unbind(dim=1)
    tokens, sides = ids[: len(rows.tokens)], ids[len(rows.tokens) :]
    return SequenceEvents(
        offsets=_offsets(live.sum(dim=1)),
        sids=torch.stack(tokens, dim=1) - torch.tensor(rows.tokens),
        age_buckets=age - rows.age,
        side=tuple(each - begin for each, begin in zip(sides, rows.side, strict=False)),
    )


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)])
