"""The text between the values that texts list, if any do."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from grace.index.proposal.facts import BATCH_ROWS
from grace.index.proposal.names import PROSE_WORDS, is_title, plain_name, words
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
        repeats = sum(1 + cell.count(separator) for cell in self.cells) > len(values)
        return codes and (repeats or len(values) <= _FEW_VALUES)


def list_separator(files: Sequence[TableFile], columns: Sequence[str] | None = None) -> str | None:
    """Return the separator by which most columns list values; None if no column does.

    This reads all rows of these columns, by default of all, since lists may begin late.
    """
    texts_of = {
        file: [
            each.name
            for each in file.schema
            if is_text(each.type) and (columns is None or each.name in columns)
        ]
        for file in files
    }
    return separator_in(
        batch
        for file, names in texts_of.items()
        if names
        for batch in file.batches(names, BATCH_ROWS)
    )


def separator_in(batches: Iterable[pa.RecordBatch]) -> str | None:
    found: dict[str, _Cells] = {}
    for batch in batches:
        for each, column in zip(batch.schema, batch.columns, strict=True):
            if is_text(each.type) and not _is_prose(plain_name(each.name)):
                found.setdefault(each.name, _Cells()).add(column)
    counts = {s: sum(each.lists(s) for each in found.values()) for s in SEPARATORS}
    best = max(SEPARATORS, key=lambda separator: counts[separator])
    return best if counts[best] else None


def _is_prose(plain: str) -> bool:
    return is_title(plain) or bool(words(plain) & PROSE_WORDS)


def are_paths(values: Collection[str]) -> bool:
    """Return whether most values are places in a tree, such as `us/oh/columbus`."""
    for separator in ("/", ">"):
        paths = [value.split(separator) for value in values if separator in value]
        tops = {value.partition(separator)[0] for value in values}
        related = len(tops) < len(values) or len({*map(len, paths)}) > 1
        if paths and 2 * len(paths) >= len(values) and related:
            return True
    return False
