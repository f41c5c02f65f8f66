"""Write the ads table that a build reads: one ad per item, or an ads table with the items' SIDs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grace.configs.errors import InputError
from grace.index.importers.items import AcceptedItems
from grace.index.progress import Advance
from grace.index.rejects import Fault, Reject, RejectLog, brief
from grace.index.tables.addresses import Format
from grace.index.tables.data_folder import SID_SPACE_KEY, VOCAB_SIZES_KEY
from grace.index.tables.item_numbers import IdMap, replacing
from grace.index.tables.table_file import open_table

SID = pa.list_(pa.uint16())
ROWS_PER_GROUP = 1 << 17
_ROWS_PER_BATCH = 1 << 16


def write_items(
    out: Path,
    name: str,
    ids: pa.Array,
    tokens: npt.NDArray[np.uint16],
    metadata: Mapping[bytes, bytes],
    advance: Advance = lambda _: None,
) -> None:
    """Write the ids as column `name`, and `sid`; the file appears whole or not at all."""
    kind = pa.int64() if pa.types.is_integer(ids.type) else pa.string()
    schema = pa.schema([(name, kind), ("sid", SID)], metadata)
    with replacing(out) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        for first in range(0, len(ids), ROWS_PER_GROUP):
            part = ids.slice(first, ROWS_PER_GROUP).cast(kind)
            sids = _sids(tokens[first : first + ROWS_PER_GROUP])
            writer.write_table(pa.table([part, sids], schema=schema))
            advance(first + len(part))


class AdsToJoin:
    """An ads table without SIDs, whose column `key` names the item of each ad."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        self.table = open_table(str(path))
        if self.table.format is not Format.PARQUET:
            shown = self.table.format.shown
            raise InputError(f"{path}: not a readable Parquet file, but {shown}")
        self.schema = self.table.schema
        self.rows = self.table.count_rows()
        for name in ("ad_id", key):
            if name not in self.schema.names:
                raise InputError(f"{path}: column {name!r} is missing")
        if "sid" in self.schema.names:
            raise InputError(f"{path}: has a column 'sid' already; drop it to join others")
        _check_joinable(path, self.schema)
        kind = self.schema.field(key).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        self.key_is_text = bool(pa.types.is_string(value) or pa.types.is_large_string(value))
        if not self.key_is_text and (not pa.types.is_integer(kind) or kind == pa.uint64()):
            raise InputError(
                f"{path}: column {key!r} must be integers or text, got {kind}; "
                "cast the column to int64 or string"
            )


def _check_joinable(path: Path, schema: pa.Schema) -> None:
    for field in schema:
        try:
            pa.nulls(1, field.type).filter(pa.array([True]))
        except pa.ArrowNotImplementedError:
            raise InputError(
                f"{path}: column {field.name!r} is of type {field.type}, whose rows cannot be "
                "taken; drop the column, or cast it"
            ) from None


def write_joined(
    out: Path,
    items: AcceptedItems,
    names: IdMap | None,
    ads: AdsToJoin,
    sid_space: str,
    rejects: RejectLog,
    advance: Advance,
) -> npt.NDArray[np.bool_]:
    """The ads table's rows and columns, each with its item's SID.

    Returns which items some ad names. An ad whose item has no SID is refused.
    """
    metadata = {**(ads.schema.metadata or {}), **sid_metadata(sid_space, items.vocab_sizes)}
    schema = ads.schema.append(pa.field("sid", SID)).with_metadata(metadata)
    places_of = _Places(items.numbers, names)
    named = np.zeros(len(items.numbers), np.bool_)
    row = 0
    with replacing(out) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        for batch in ads.table.batches(ads.schema.names, _ROWS_PER_BATCH):
            keys = batch.column(ads.key)
            places = places_of(keys)
            found = places >= 0
            rejects.extend(_without_sid(ads, keys, np.flatnonzero(~found), row))
            named[places[found]] = True
            kept = batch.filter(pa.array(found))
            columns = [*kept.columns, _sids(items.tokens[places[found]])]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            row += batch.num_rows
            advance(row)
        if not named.any():
            raise InputError(
                f"{ads.path}: none of its {ads.rows} ads has a SID: does column {ads.key!r} name "
                "the items? --key names another"
            )
    return named


def _without_sid(
    ads: AdsToJoin, keys: pa.Array, places: npt.NDArray[np.int64], first_row: int
) -> list[Reject]:
    rejects = []
    for at in places.tolist():
        value = _plain(keys[at], "(not UTF-8)")
        key = None if value is None else brief(str(value))
        reason = "is null" if key is None else "has no SID among the imported items"
        rejects.append(Reject(str(ads.path), first_row + at, key, Fault(ads.key, key, reason)))
    return rejects


class _Places:
    """The place of an ad's item among the accepted ones; -1 for an item that is not there."""

    def __init__(self, numbers: npt.NDArray[np.int64], names: IdMap | None) -> None:
        self._order = np.argsort(numbers, kind="stable")
        self._sorted = numbers[self._order]
        self._names = names

    def __call__(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        numbers = _integers(keys) if self._names is None else _numbers_of_texts(keys, self._names)
        at = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        places: npt.NDArray[np.int64] = np.where(self._sorted[at] == numbers, self._order[at], -1)
        return places


def _numbers_of_texts(keys: pa.Array, names: IdMap) -> npt.NDArray[np.int64]:
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    known = [None if (text := _plain(key)) is None else names.find(text) for key in keys.dictionary]
    # The last number is for null keys, whose code is -1.
    of_code = np.array([*(-1 if number is None else number for number in known), -1], np.int64)
    codes = keys.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    numbers: npt.NDArray[np.int64] = of_code[codes]
    return numbers


def _plain(key: Any, not_utf8: str | None = None) -> Any:
    """Return the Python value of an Arrow scalar."""
    try:
        return key.as_py()
    except UnicodeDecodeError:
        return not_utf8


def _integers(keys: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = keys.cast(pa.int64()).fill_null(-1).to_numpy()
    return numbers


def _sids(tokens: npt.NDArray[np.uint16]) -> pa.Array:
    rows, length = tokens.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(length)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.reshape(-1)))


def sid_metadata(sid_space: str, vocab_sizes: Sequence[int]) -> dict[bytes, bytes]:
    sizes = ",".join(map(str, vocab_sizes))
    return {SID_SPACE_KEY: sid_space.encode(), VOCAB_SIZES_KEY: sizes.encode()}
