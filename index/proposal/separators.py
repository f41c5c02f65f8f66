"""The text between the values that texts list, if any do."""

from collections.abc import Collection, Iterable

from grace.index.proposal.facts import ColumnFacts
from grace.index.proposal.names import PROSE_WORDS, is_title

SEPARATORS = ("|", ";", ",")
_LONGEST_VALUE = 60
_FEW_VALUES = 64


def separator_in(facts: Iterable[ColumnFacts]) -> str | None:
    """Return the separator by which most columns list values; None if no column does.

    The facts must come from cells that are not split yet.
    """
    cells = [
        each.values
        for each in facts
        if each.has_texts and not (is_title(each.plain) or each.words & PROSE_WORDS)
    ]
    counts = {separator: sum(_lists(each, separator) for each in cells) for separator in SEPARATORS}
    best = max(SEPARATORS, key=lambda separator: counts[separator])
    return best if counts[best] else None


def _lists(cells: Collection[str], separator: str) -> bool:
    """Return whether the values repeat in different cells, or are few and without blanks."""
    if not any(separator in cell for cell in cells):
        return False
    values = {value.strip() for cell in cells for value in cell.split(separator)}
    if "" in values or max(map(len, values)) > _LONGEST_VALUE:
        return False
    if separator == "," and all(map(str.isdecimal, values)):  # decimals such as 1,5
        return False
    if len(values) < len(cells):
        return True
    codes = separator == "|" or not any(" " in cell for cell in cells)
    repeats = sum(1 + cell.count(separator) for cell in cells) > len(values)
    return codes and (repeats or len(values) <= _FEW_VALUES)


def are_paths(values: Collection[str]) -> bool:
    """Return whether most values are places in a tree, such as `us/oh/columbus`."""
    for separator in ("/", ">"):
        paths = [value.split(separator) for value in values if separator in value]
        tops = {value.partition(separator)[0] for value in values}
        related = len(tops) < len(values) or len({*map(len, paths)}) > 1
        if paths and 2 * len(paths) >= len(values) and related:
            return True
    return False
