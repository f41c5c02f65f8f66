"""Stream the ads table: one batch of rows at a time, the next one decoded on another thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.builder.canonical import CanonicalBatch, canonical
from grace.index.builder.columns import ListColumn, ValueCodes, attribute_codes, list_column
from grace.index.builder.item_sids import ItemSids
from grace.index.builder.source import AdsFile, AdsSource, rule_columns
from grace.index.entities import NO_ENTITY
from grace.index.rejects import Fault, Reject, brief
from grace.index.tables.cells import list_parts
from grace.index.tables.item_numbers import IdMap
from grace.index.targeting.schema import EXCLUDE_SUFFIX, TargetingSchema

BATCH_ROWS = 1 << 17
_INT64_MAX = pa.scalar((1 << 63) - 1, pa.uint64())


@dataclass(frozen=True, slots=True)
class AdsBatch:
    """
    ad_ids int64 [rows], -1 where refused; tokens uint16 [rows, L]; weights float32 [rows]
    entity_ids: int64 [rows] of every entity, NO_ENTITY where the ad belongs to none
    rules: include and exclude of every attribute, then of every set; None for an absent column
    """

    file: AdsFile
    first_row: int
    ad_ids: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]
    entity_ids: tuple[npt.NDArray[np.int64], ...]
    rules: tuple[ListColumn | None, ...]
    rejects: tuple[Reject, ...]  # at most one per row
    refused: npt.NDArray[np.bool_]  # [rows]
    read: CanonicalBatch


@dataclass(frozen=True, slots=True)
class AdsReading:
    """The parts that turn the rows of an ads table into ads."""

    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    names: Mapping[str, IdMap] = field(default_factory=dict)  # id maps of columns
    sids: ItemSids | None = None  # None: the table has a column sid
    batch_rows: int = BATCH_ROWS


class BatchReader:
    """Iterating yields AdsBatch in file order.

    `set_codes` has each set's values so far, `stated` the names on which some row so far has a
    rule, or an entity.
    """

    def __init__(self, source: AdsSource, reading: AdsReading) -> None:
        schema = reading.schema
        self._source = source
        self._reading = reading
        self._vocab_sizes = np.array(reading.vocab_sizes, np.int64)
        self.set_codes = tuple(ValueCodes() for _ in schema.sets)
        self.stated: set[str] = set()
        codes = [attribute_codes(attribute.values) for attribute in schema.attributes]
        code_of: list[Callable[[str], int]] = [*codes, *self.set_codes]
        both = [code for code in code_of for _ in ("include", "exclude")]
        self._code_of = dict(zip(rule_columns(schema), both, strict=True))

    def __iter__(self) -> Iterator[AdsBatch]:
        """Decoding runs one batch ahead; its failure is raised here."""
        batches = self._batches()
        with ThreadPoolExecutor(1, thread_name_prefix="grace-read-ads") as ahead:
            future = ahead.submit(next, batches, None)
            while (batch := future.result()) is not None:
                future = ahead.submit(next, batches, None)
                yield batch

    def _batches(self) -> Iterator[AdsBatch]:
        reading = self._reading
        for file in self._source.files:
            row = 0
            columns = list(dict.fromkeys(file.theirs.values()))
            for given in file.table.batches(columns, reading.batch_rows):
                if row + given.num_rows > file.rows:
                    raise InputError(f"{file.address}: grew while it was read")
                if file.is_canonical:
                    read = CanonicalBatch(given, given.column("ad_id"))
                else:
                    read = canonical(given, file, reading.schema, reading.names)
                yield self._decode(file, row, read)
                row += given.num_rows
            if row != file.rows:
                raise InputError(
                    f"{file.address}: {row} rows read, it had {file.rows} before: leave it as it "
                    "is during the build"
                )

    def _decode(self, file: AdsFile, first_row: int, read: CanonicalBatch) -> AdsBatch:
        batch, sids = read.batch, self._reading.sids
        rows = batch.num_rows
        if first_row == 0 and sids is None:
            self._check_sid_length(file, batch)
        faults = _RowFaults(rows)
        for row, fault in read.faults:
            faults.add(row, fault.column, fault.value, fault.reason)
        ad_ids = _ad_ids(batch, faults)
        if sids is None:
            tokens = _tokens(batch, self._vocab_sizes, faults)
        else:
            tokens = _joined_tokens(ad_ids, read.given_ids, sids, faults)
        weights = _weights(batch, faults)
        entities = self._reading.schema.entities
        entity_ids = tuple(_entity_ids(batch, name, faults) for name in entities)
        rules = tuple(
            list_column(batch.column(name), code_of) if name in file.theirs else None
            for name, code_of in self._code_of.items()
        )
        self._note_stated(rules, entity_ids)
        rejects = tuple(
            Reject(file.address, first_row + row, given_id(read, row), fault)
            for row, fault in sorted(faults.first.items())
        )
        return AdsBatch(
            *(file, first_row, ad_ids, tokens, weights, entity_ids, rules, rejects),
            *(faults.refused, read),
        )

    def _note_stated(
        self,
        rules: Sequence[ListColumn | None],
        entity_ids: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        for column, rule in zip(self._code_of, rules, strict=True):
            name = column.removesuffix(EXCLUDE_SUFFIX)
            if rule is None or name in self.stated:
                continue
            stated = rule.valid == 1
            if column != name:  # an empty exclude list is no rule
                stated &= np.diff(rule.offsets) > 0
            if stated.any():
                self.stated.add(name)
        for name, ids in zip(self._reading.schema.entities, entity_ids, strict=True):
            if name not in self.stated and (ids != NO_ENTITY).any():
                self.stated.add(name)

    def _check_sid_length(self, file: AdsFile, batch: pa.RecordBatch) -> None:
        """If all SIDs have another length, then the option is wrong and not the ads."""
        parts = list_parts(batch.column("sid"))
        found = np.unique(np.diff(parts.offsets)[parts.valid == 1])
        if len(found) == 1 and 0 < found[0] != len(self._vocab_sizes) and batch.num_rows > 1:
            sizes = ",".join(map(str, self._vocab_sizes.tolist()))
            raise InputError(
                f"--vocab-sizes {sizes}: {len(self._vocab_sizes)} tokens, but the SIDs of "
                f"{file.address} have {found[0]}: give one size per token, there or as "
                "grace.vocab_sizes in the file's metadata"
            )


class _RowFaults:
    """The first fault that was found in each refused row."""

    def __init__(self, rows: int) -> None:
        self.refused = np.zeros(rows, np.bool_)
        self.first: dict[int, Fault] = {}

    def add(self, row: int, column: str, value: str | None, reason: str) -> None:
        if row not in self.first:
            self.first[row] = Fault(column, value, reason)
            self.refused[row] = True


def _ad_ids(batch: pa.RecordBatch, faults: _RowFaults) -> npt.NDArray[np.int64]:
    column = batch.column("ad_id")
    for row in _rows(column.is_null()):
        faults.add(row, "ad_id", None, "is null")
    ids: npt.NDArray[np.int64] = column.cast(pa.int64()).fill_null(-1).to_numpy()
    for row in np.flatnonzero(ids < 0).tolist():
        faults.add(row, "ad_id", str(ids[row]), "must not be negative")
    return ids


def _tokens(
    batch: pa.RecordBatch, vocab_sizes: npt.NDArray[np.int64], faults: _RowFaults
) -> npt.NDArray[np.uint16]:
    rows, length = batch.num_rows, len(vocab_sizes)
    parts = list_parts(batch.column("sid"))
    right_length = (np.diff(parts.offsets) == length) & (parts.valid == 1)
    for row in np.flatnonzero(~right_length).tolist():
        if parts.valid[row]:
            found = int(parts.offsets[row + 1] - parts.offsets[row])
            faults.add(row, "sid", f"{found} tokens", f"the SID length is {length}")
        else:
            faults.add(row, "sid", None, "is null")
    flat = parts.flat.fill_null(0) if parts.flat.null_count else parts.flat
    places = parts.offsets[:-1][right_length, None] + np.arange(length)
    found_tokens = flat.to_numpy(zero_copy_only=False).astype(np.int64)[places]
    outside = (found_tokens < 0) | (found_tokens >= vocab_sizes)
    right_rows = np.flatnonzero(right_length)
    if parts.flat.null_count:
        nulls = parts.flat.is_null().to_numpy(zero_copy_only=False)[places]
        for at in np.flatnonzero(nulls.any(axis=1)).tolist():
            faults.add(int(right_rows[at]), "sid", None, "holds a null token")
    for at in np.flatnonzero(outside.any(axis=1)).tolist():
        position = int(np.argmax(outside[at]))
        faults.add(
            int(right_rows[at]),
            "sid",
            str(parts.flat[int(places[at, position])]),
            f"token at position {position} is outside the vocabulary of {vocab_sizes[position]}",
        )
    tokens = np.zeros((rows, length), np.uint16)
    tokens[right_rows] = np.where(outside, 0, found_tokens)
    return tokens


def _weights(batch: pa.RecordBatch, faults: _RowFaults) -> npt.NDArray[np.float32]:
    if "ad_weight" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.float32)
    given = batch.column("ad_weight").cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
    with np.errstate(over="ignore"):
        weights: npt.NDArray[np.float32] = given.astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(weights)).tolist():
        faults.add(row, "ad_weight", str(given[row]), "must be a finite float32")
    return weights


def _joined_tokens(
    ad_ids: npt.NDArray[np.int64], given_ids: pa.Array, sids: ItemSids, faults: _RowFaults
) -> npt.NDArray[np.uint16]:
    places = sids.places(ad_ids)
    for row in np.flatnonzero((places < 0) & ~faults.refused).tolist():
        faults.add(row, "sid", brief(str(given_ids[row])), sids.absent)
    if len(sids.tokens) == 0:
        return np.zeros((len(ad_ids), sids.tokens.shape[1]), np.uint16)
    tokens: npt.NDArray[np.uint16] = sids.tokens[np.maximum(places, 0)]
    return tokens


def _entity_ids(batch: pa.RecordBatch, name: str, faults: _RowFaults) -> npt.NDArray[np.int64]:
    if name not in batch.schema.names:  # a build without this entity
        return np.full(batch.num_rows, NO_ENTITY)
    column = batch.column(name)
    if pa.types.is_uint64(column.type):
        for row in _rows(pc.greater(column, _INT64_MAX).fill_null(False)):
            faults.add(row, name, str(column[row]), "must be less than 2^63")
    given: npt.NDArray[np.int64] = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy()
    for row in np.flatnonzero(given < 0).tolist():
        faults.add(row, name, str(given[row]), "must not be negative")
    return np.where(column.is_null().to_numpy(zero_copy_only=False), NO_ENTITY, given)


def _rows(mask: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return rows


def given_id(read: CanonicalBatch, row: int) -> int | str | None:
    """Return an ad's id as its table has it."""
    try:
        given: int | str | None = read.given_ids[row].as_py()
    except UnicodeDecodeError:
        return None
    return brief(given) if isinstance(given, str) else given


def raw_values(batch: pa.RecordBatch, column: str, row: int) -> Sequence[str | None]:
    """Return one row's list as Python values, None for bytes that are not UTF-8; for messages."""
    try:
        values: list[str | None] = batch.column(column)[row].as_py()
    except UnicodeDecodeError:
        return [None]
    return values
