"""The rows of k-way matchers that can decide: fewer ids to store on a device, fewer rows to test.

A user who passes a row passes every row that contains it. So an entry does not need a row that
another of its rows contains, such as the row of an empty partition. And a row with the reserved
element, which every user has, is the only row that its entry needs. Admission stays the same.
"""

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import Int32
from grace.configs.errors import ConfigError
from grace.configs.machine import available_cores
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.trie import SidTrie
from grace.native.loader import declare

_MOST_IDS = 2**31 - 1

_needed_rows = declare(
    "grace_needed_rows(int32, int64, int32[], uint64[,], int32, pointer, out int32[], out int32[], "
    "out int64[])"
)


def needed_rows(
    rows: NodeMatchers,
    trie: SidTrie,
    star: npt.NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> tuple[Int32, Int32 | None]:
    """Return the needed rows of one kind; all rows in mode `union`. `star` is that of a set's rows.

    -> row ids, entry after entry, and offsets [entries + 1]: entry j has those from offsets[j] to
       offsets[j + 1]. Offsets are None if each entry has one id: entry j has ids[j]
    """
    if rows.offsets is None and rows.level_widths is None:
        return rows.index, None
    entries, index = trie.num_entries, np.array(rows.index)
    offsets = np.empty(entries + 1, np.int32)
    found = np.empty(1, np.int64)
    _needed_rows(
        threads or available_cores(),
        entries,
        rows.borders(trie),
        rows.table,
        rows.table.shape[1],
        None if star is None else star.ctypes.data,
        index,
        offsets,
        found,
    )
    num_ids = int(found[0])
    if num_ids > _MOST_IDS:
        raise ConfigError(
            f"k-way matchers need {num_ids} row ids, at most {_MOST_IDS} can be "
            "numbered: build with fewer partitions or in mode union"
        )
    return index[:num_ids].copy(), None if num_ids == entries else offsets
