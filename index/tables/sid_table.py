"""A table of SIDs: `item_id` (int64 or text) and `sid`, of one SID space and vocabulary."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.configs.arrays import UInt16
from grace.configs.errors import InputError
from grace.configs.strict_json import shown
from grace.index.progress import Advance
from grace.index.rejects import brief
from grace.index.tables import roles
from grace.index.tables.addresses import Format, ending_format, files_at, within
from grace.index.tables.data_folder import SID_SPACE_KEY, SIDS_FILE, VOCAB_SIZES_KEY, DataFolder
from grace.index.tables.item_numbers import replacing
from grace.index.tables.roles import require_column
from grace.index.tables.table_file import TableFile, open_table

COLUMNS = {"item_id": "item_id", "sid": "sid"}

_SID = pa.list_(pa.uint16())
_ROWS_PER_GROUP = 1 << 17


def sid_table_at(sids: str) -> str:
    """Return the address of a table of SIDs, or of that in a codebook's folder."""
    return sids if ending_format(sids) else within(sids, SIDS_FILE)


def open_sid_table(sids: str) -> TableFile:
    table = open_table(sid_table_at(sids))
    if table.format is Format.CSV:
        raise InputError(
            f"{table.address}: a CSV has no lists; write the SIDs as Parquet or JSON lines"
        )
    require_column(roles.NAME, table, "item_id", "item_id", ", of a table of SIDs,")
    require_column(roles.SID, table, "sid", "sid", ", of a table of SIDs,")
    return table


def sid_space_in(table: TableFile) -> str | None:
    return _metadata(table, SID_SPACE_KEY)


def require_space(data: DataFolder, name: str) -> None:
    """Refuse a data folder whose tables state another SID space than that of a version.

    A table that cannot be read states nothing: a folder may lack those that only builds read.
    """
    stated: dict[str, str | None] = {}
    for address in data.ads.files if data.sids is None else [sid_table_at(data.sids)]:
        with suppress(InputError):
            for file in files_at([address]):
                if ending_format(file) is Format.PARQUET:
                    stated[file] = sid_space_in(open_table(file))
    for file, space in stated.items():
        if space not in (None, name):
            raise InputError(
                f"{data.folder}: its SID space is {space!r} ({file}), but that of the served or "
                f"given version is {name!r}; give --data the folder that it was built from, or "
                "correct that file's metadata grace.sid_space"
            )


def vocab_sizes_in(table: TableFile) -> tuple[int, ...] | None:
    text = _metadata(table, VOCAB_SIZES_KEY)
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise InputError(
            f"{table.address}: metadata grace.vocab_sizes: expected sizes such as 512,512, got "
            f"{shown(text)}"
        ) from None


def _metadata(table: TableFile, key: bytes) -> str | None:
    value: bytes | None = (table.schema.metadata or {}).get(key)
    return None if value is None else value.decode(errors="replace")


def write_sid_table(
    out: Path,
    ids: pa.Array,
    tokens: UInt16,
    sid_space: str,
    vocab_sizes: Sequence[int],
    advance: Advance = lambda _: None,
) -> None:
    """Write the SIDs, tokens [items, L]; the file appears whole or not at all."""
    sizes = ",".join(map(str, vocab_sizes))
    metadata = {SID_SPACE_KEY: sid_space.encode(), VOCAB_SIZES_KEY: sizes.encode()}
    kind = pa.int64() if pa.types.is_integer(ids.type) else pa.string()
    schema = pa.schema([("item_id", kind), ("sid", _SID)], metadata)
    with replacing(out) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        for first in range(0, len(ids), _ROWS_PER_GROUP):
            part = ids.slice(first, _ROWS_PER_GROUP).cast(kind)
            own = tokens[first : first + _ROWS_PER_GROUP]
            offsets = np.arange(len(own) + 1, dtype=np.int32) * np.int32(own.shape[1])
            sids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(own.reshape(-1)))
            writer.write_table(pa.table([part, sids], schema=schema))
            advance(first + len(part))


def first_repeat(ids: pa.Array) -> tuple[str, str] | None:
    """Return a repeated value, and its first two rows as in `in rows 3 and 7`; None if all values
    are different."""
    codes = ids.dictionary_encode().indices.to_numpy()
    if len(codes) and int(codes.max()) + 1 == len(codes):
        return None
    order = np.argsort(codes, kind="stable")
    at = np.flatnonzero(np.diff(codes[order]) == 0)
    if not len(at):
        return None
    first, second = order[at[0]] + 1, order[at[0] + 1] + 1
    return brief(str(ids[first - 1].as_py())), f"in rows {first} and {second}"
