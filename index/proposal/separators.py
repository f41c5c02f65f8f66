"""The text between the values that texts list, if any do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from grace.index.proposal.facts import BATCH_ROWS
from grace.index.proposal.names import DESCRIBING_WORDS, TITLE_NAMES, plain_name, words
from grace.index.tables.cells import is_text, texts
from grace.index.tables.table_file import TableFile

SEPARATORS = ("|", ";", ",")
_MOST = 1 << 16
_LONGEST_VALUE = 60
_FEW_VALUES = 64


@dataclass
class _Cells:
    """The distinct cells of a column, up to a limit, and the separators that are in any cell."""

    cells: set[str] = field(default_factory=set)
    separators: set[str] = field(default_factory=set)

    def add(self, column: pa.Array) -> None:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary
        for separator in set(SEPARATORS) - self.separators:
            if pc.any(pc.match_substring(column, separator)).as_py():
                self.separators.add(separator)
        if len(self.cells) < _MOST:
            self.cells.update(cell for cell in texts(column.unique()) if cell)

    def lists(self, separator: str) -> bool:
        """Return whether the values repeat in different cells, or are few and without blanks."""
        if separator not in self.separators:
            return False
        values = {value.strip() for cell in self.cells for value in cell.split(separator)}
        if "" in values or max(map(len, values)) > _LONGEST_VALUE:
            return False
        if separator == "," and all(map(str.isdecimal, values)):  # decimals such as 1,5
            return False
        if len(values) < len(self.cells):
            return True
        codes = separator == "|" or not any(" " in cell for cell in self.cells)
        return codes and len(values) <= _FEW_VALUES


def list_separator(files: Sequence[TableFile], columns: Sequence[str] | None = None) -> str | None:
    """Return the separator by which most columns list values; None if no column does.

    This reads all rows of these columns, by default of all, since lists may begin late.
    """
    found: dict[str, _Cells] = {}
    for file in files:
        names = [
            each.name
            for each in file.schema
            if is_text(each.type)
            and (columns is None or each.name in columns)
            and not _is_prose(plain_name(each.name))
        ]
        for batch in file.batches(names, BATCH_ROWS) if names else ():
            for name in names:
                found.setdefault(name, _Cells()).add(batch.column(name))
    counts = {s: sum(each.lists(s) for each in found.values()) for s in SEPARATORS}
    best = max(SEPARATORS, key=lambda separator: counts[separator])
    return best if counts[best] else None


def _is_prose(plain: str) -> bool:
    return plain in TITLE_NAMES or bool(words(plain) & DESCRIBING_WORDS)
