"""Stream the ads table: one batch of rows at a time, the next one decoded on another thread."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grace.configs.errors import InputError
from grace.index.builder.columns import (
    ListColumn,
    ValueCodes,
    attribute_codes,
    list_column,
    list_parts,
)
from grace.index.builder.source import AdsFile, AdsSource, rule_columns
from grace.index.entities import NO_ENTITY
from grace.index.rejects import Fault, Reject
from grace.index.tables.addresses import UNREADABLE, first_line
from grace.index.targeting.schema import TargetingSchema

BATCH_ROWS = 1 << 17
_BATCH_BYTES = 1 << 27
_READ_BUFFER = 1 << 22  # bytes per column: a row group of any size streams through
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
    record_batch: pa.RecordBatch


class BatchReader:
    """Iterating yields AdsBatch in file order. `set_codes` has each set's values so far."""

    def __init__(
        self,
        source: AdsSource,
        schema: TargetingSchema,
        vocab_sizes: tuple[int, ...],
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._source = source
        self._vocab_sizes = np.array(vocab_sizes, np.int64)
        self._batch_rows = batch_rows
        self._entities = schema.entities
        self.set_codes = tuple(ValueCodes() for _ in schema.sets)
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
        for file in self._source.files:
            row = 0
            try:
                with pq.ParquetFile(file.path, buffer_size=_READ_BUFFER, pre_buffer=False) as table:
                    if table.schema_arrow.names != list(file.all_columns):
                        raise InputError(f"{file.path}: its columns changed while it was read")
                    for batch in self._record_batches(table, file):
                        if row + batch.num_rows > file.rows:
                            raise InputError(f"{file.path}: grew while it was read")
                        yield self._decode(file, row, batch)
                        row += batch.num_rows
            except pa.ArrowNotImplementedError as error:
                if "chunked array" not in str(error):
                    raise InputError(f"{file.path}: cannot be read: {first_line(error)}") from None
                raise InputError(
                    f"{file.path}: a list column holds more than 2 GiB of text near row {row}; "
                    "write row groups of fewer rows"
                ) from None
            except UNREADABLE as error:
                raise InputError(
                    f"{file.path}: damaged near row {row}: {first_line(error)}"
                ) from None
            if row != file.rows:
                raise InputError(f"{file.path}: {row} rows read, its footer says {file.rows}")

    def _record_batches(self, table: pq.ParquetFile, file: AdsFile) -> Iterator[pa.RecordBatch]:
        """Read group by group: Arrow cannot join nested dictionaries across the groups' border."""
        for group in range(table.num_row_groups):
            held = table.metadata.row_group(group)
            bytes_per_row = max(1, held.total_byte_size // max(1, held.num_rows))
            rows = max(1, min(self._batch_rows, _BATCH_BYTES // bytes_per_row))
            yield from table.iter_batches(rows, row_groups=[group], columns=list(file.columns))

    def _decode(self, file: AdsFile, first_row: int, batch: pa.RecordBatch) -> AdsBatch:
        rows = batch.num_rows
        if first_row == 0:
            self._check_sid_length(file, batch)
        faults = _RowFaults(rows)
        ad_ids = _ad_ids(batch, faults)
        tokens = _tokens(batch, self._vocab_sizes, faults)
        weights = _weights(batch, faults)
        entity_ids = tuple(_entity_ids(batch, name, file, faults) for name in self._entities)
        rules = tuple(
            list_column(batch.column(name), code_of) if name in file.columns else None
            for name, code_of in self._code_of.items()
        )
        given_ids = batch.column("ad_id")
        rejects = tuple(
            Reject(str(file.path), first_row + row, given_ids[row].as_py(), fault)
            for row, fault in sorted(faults.first.items())
        )
        return AdsBatch(
            *(file, first_row, ad_ids, tokens, weights, entity_ids, rules, rejects),
            *(faults.refused, batch),
        )

    def _check_sid_length(self, file: AdsFile, batch: pa.RecordBatch) -> None:
        """If all SIDs have another length, then the option is wrong and not the ads."""
        parts = list_parts(batch.column("sid"))
        found = np.unique(np.diff(parts.offsets)[parts.valid == 1])
        if len(found) == 1 and 0 < found[0] != len(self._vocab_sizes) and batch.num_rows > 1:
            sizes = ",".join(map(str, self._vocab_sizes.tolist()))
            raise InputError(
                f"--vocab-sizes {sizes}: {len(self._vocab_sizes)} tokens, but the SIDs of "
                f"{file.path} have {found[0]}: give one size per token, there or as "
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
    given = batch.column("ad_weight").cast(pa.float64()).fill_null(0.0).to_numpy()
    with np.errstate(over="ignore"):
        weights: npt.NDArray[np.float32] = given.astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(weights)).tolist():
        faults.add(row, "ad_weight", str(given[row]), "must be a finite float32")
    return weights


def _entity_ids(
    batch: pa.RecordBatch, name: str, file: AdsFile, faults: _RowFaults
) -> npt.NDArray[np.int64]:
    if name not in file.columns:  # a build without this entity
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


def raw_values(batch: pa.RecordBatch, column: str, row: int) -> Sequence[str | None]:
    """Return one row's list as Python values, None for bytes that are not UTF-8; for messages."""
    try:
        values: list[str | None] = batch.column(column)[row].as_py()
    except UnicodeDecodeError:
        return [None]
    return values
