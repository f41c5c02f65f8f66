"""A table of SIDs: `item_id` (int64 or text) and `sid`, of one SID space and vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grace.index.progress import Advance
from grace.index.tables.data_folder import SID_SPACE_KEY, VOCAB_SIZES_KEY
from grace.index.tables.item_numbers import replacing

SID = pa.list_(pa.uint16())
_ROWS_PER_GROUP = 1 << 17


def write_sid_table(
    out: Path,
    ids: pa.Array,
    tokens: npt.NDArray[np.uint16],
    sid_space: str,
    vocab_sizes: Sequence[int],
    advance: Advance = lambda _: None,
) -> None:
    """Write the SIDs, tokens [items, L]; the file appears whole or not at all."""
    sizes = ",".join(map(str, vocab_sizes))
    metadata = {SID_SPACE_KEY: sid_space.encode(), VOCAB_SIZES_KEY: sizes.encode()}
    kind = pa.int64() if pa.types.is_integer(ids.type) else pa.string()
    schema = pa.schema([("item_id", kind), ("sid", SID)], metadata)
    with replacing(out) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        for first in range(0, len(ids), _ROWS_PER_GROUP):
            part = ids.slice(first, _ROWS_PER_GROUP).cast(kind)
            sids = _sids(tokens[first : first + _ROWS_PER_GROUP])
            writer.write_table(pa.table([part, sids], schema=schema))
            advance(first + len(part))


def _sids(tokens: npt.NDArray[np.uint16]) -> pa.Array:
    rows, length = tokens.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(length)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.reshape(-1)))
