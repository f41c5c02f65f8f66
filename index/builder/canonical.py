"""Convert batches of any table to the canonical form that the build reads.

Canonical are our names, int64 ids, and rules as lists of texts. A cell that has no such form is a
fault of its row, with the cell as it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.builder.source import AdsFile, rule_columns
from grace.index.rejects import Fault, brief
from grace.index.tables import cells
from grace.index.tables.addresses import Format
from grace.index.tables.item_numbers import IdMap, no_name
from grace.index.targeting.schema import TargetingSchema

_LINE_BREAK = "[\r\n]"

RowFault = tuple[int, Fault]


@dataclass(frozen=True, slots=True)
class CanonicalBatch:
    """given_ids: the ads' ids as the table has them, for messages"""

    batch: pa.RecordBatch
    given_ids: pa.Array
    faults: tuple[RowFault, ...] = ()


def canonical(
    given: pa.RecordBatch, file: AdsFile, schema: TargetingSchema, names: IdMap | None
) -> CanonicalBatch:
    """`names` numbers the ads; without it their ids are integers."""
    columns = {ours: given.column(theirs) for ours, theirs in file.theirs.items()}
    given_ids = columns["ad_id"]
    faults: list[RowFault] = []
    rules = [name for name in rule_columns(schema) if name in columns]
    if names is not None:
        columns["ad_id"] = _numbers(given_ids, names, faults, file)
    if file.table.format is Format.CSV:
        if names is not None:
            faults.extend(_line_breaks("ad_id", given_ids))
            faults.extend(_blanks_around("ad_id", given_ids))
        _read_texts(columns, schema, rules, file.table.list_separator, faults, names is not None)
    else:
        for name in rules:
            separator = file.table.list_separator
            columns[name] = cells.rule_lists(columns[name], separator, is_csv=False)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return CanonicalBatch(batch, given_ids, tuple(faults))


def _numbers(given_ids: pa.Array, names: IdMap, faults: list[RowFault], file: AdsFile) -> pa.Array:
    texts = cells.texts(given_ids)
    numbers = [None if text is None else names.find(text) for text in texts]
    nulls = given_ids.is_null().to_numpy(zero_copy_only=False)
    for row, (text, number, is_null) in enumerate(zip(texts, numbers, nulls, strict=True)):
        if number is not None or is_null:
            continue
        reason = "is not UTF-8" if text is None else no_name(text)
        if reason is None:
            raise InputError(f"{file.address}: ad {brief(text)} was added while it was read")
        faults.append((row, Fault("ad_id", None if text is None else brief(text), reason)))
    return pa.array(numbers, pa.int64())


def _read_texts(
    columns: dict[str, pa.Array],
    schema: TargetingSchema,
    rules: list[str],
    separator: str | None,
    faults: list[RowFault],
    ids_are_mapped: bool,
) -> None:
    """Read the texts of a CSV in place, by what each column means."""
    for name in rules:
        faults.extend(_line_breaks(name, columns[name]))
        columns[name] = cells.split_cells(columns[name], separator)
    integers = [name for name in schema.entities if name in columns]
    remedy = "write a number from 0 to 2^63 - 1"
    for name in integers if ids_are_mapped else ["ad_id", *integers]:
        if name == "ad_id":
            remedy = "--id-map, or id_map in tables.yaml, numbers such ads"
        parsed, bad = cells.integers(columns[name])
        faults.extend(_bad_cells(name, columns[name], bad, f"is not an integer; {remedy}"))
        columns[name] = parsed
    if "ad_weight" in columns:
        parsed, bad = cells.numbers(columns["ad_weight"])
        faults.extend(_bad_cells("ad_weight", columns["ad_weight"], bad, "is not a number"))
        columns["ad_weight"] = parsed
    if "sid" in columns:
        lists, bad = cells.integer_lists(cells.split_cells(columns["sid"], separator))
        reason = (
            "is not a list of integers; list_separator of tables.yaml says how it lists several"
        )
        faults.extend(_bad_cells("sid", columns["sid"], bad, reason))
        columns["sid"] = lists


def _line_breaks(name: str, column: pa.Array) -> Iterator[RowFault]:
    """Find texts with a line break: an unclosed cell would swallow the rows of the next lines."""
    found = pc.match_substring_regex(column, _LINE_BREAK).fill_null(False)
    reason = "holds a line break; close its quotation mark, or remove the break"
    return _bad_cells(name, column, found.to_numpy(zero_copy_only=False), reason)


def _blanks_around(name: str, column: pa.Array) -> Iterator[RowFault]:
    """Find ids with blanks around them: the log and the SIDs may have the id without them."""
    found = pc.match_substring_regex(column, "^[ \t]|[ \t]$").fill_null(False)
    reason = "has blanks around it; remove them"
    return _bad_cells(name, column, found.to_numpy(zero_copy_only=False), reason)


def _bad_cells(
    name: str, column: pa.Array, bad: npt.NDArray[np.bool_], reason: str
) -> Iterator[RowFault]:
    for row in np.flatnonzero(bad).tolist():
        yield row, Fault(name, brief(column[row].as_py()), reason)
