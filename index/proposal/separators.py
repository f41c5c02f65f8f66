"""The text between the values that a CSV's cells list, if any do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from grace.index.proposal.facts import BATCH_ROWS
from grace.index.proposal.names import DESCRIBING_WORDS, TITLE_NAMES, plain_name, words
from grace.index.tables.table_file import Format, TableFile

SEPARATORS = ("|", ";", ",")
_MOST = 1 << 16
_LONGEST_VALUE = 60
_FEW_VALUES = 64


@dataclass
class _Cells:
    """The distinct cells of a column, and the distinct values that a separator makes of them."""

    cells: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=lambda: {s: set() for s in SEPARATORS})
    listing: set[str] = field(default_factory=set)  # separators that are in a cell

    def add(self, column: pa.Array) -> None:
        for separator in SEPARATORS:
            found = pc.match_substring(column, separator)
            if pc.any(found).as_py():
                self.listing.add(separator)
        if len(self.cells) < _MOST:
            new = set(column.drop_null().unique().to_pylist()) - self.cells
            self.cells |= new
            for separator, values in self.values.items():
                values.update(value.strip() for cell in new for value in cell.split(separator))

    def lists(self, separator: str) -> bool:
        """Return whether the values repeat in different cells, or are few and without blanks."""
        values = self.values[separator]
        if separator not in self.listing or "" in values or max(map(len, values)) > _LONGEST_VALUE:
            return False
        if separator == "," and all(map(str.isdecimal, values)):  # decimals such as 1,5
            return False
        if len(values) < len(self.cells):
            return True
        codes = separator == "|" or not any(" " in cell for cell in self.cells)
        return codes and len(values) <= _FEW_VALUES


def list_separator(files: Sequence[TableFile]) -> str | None:
    """Return the separator by which most columns list values; None if no column does.

    This reads all rows, since lists may begin late.
    """
    found: dict[str, _Cells] = {}
    for file in files:
        if file.format is not Format.CSV:
            continue
        names = [name for name in file.schema.names if not _is_prose(plain_name(name))]
        for batch in file.batches(names, BATCH_ROWS) if names else ():
            for name in names:
                found.setdefault(name, _Cells()).add(batch.column(name))
    columns = {s: sum(each.lists(s) for each in found.values()) for s in SEPARATORS}
    best = max(SEPARATORS, key=lambda separator: columns[separator])
    return best if columns[best] else None


def _is_prose(plain: str) -> bool:
    return plain in TITLE_NAMES or bool(words(plain) & DESCRIBING_WORDS)
