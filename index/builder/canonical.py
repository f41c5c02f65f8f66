"""Convert batches of any table to the canonical form that the build reads.

Canonical are our names, int64 ids, and rules as lists of texts. A cell that has no such form is a
fault of its row, with the cell as it was.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.builder.source import ENTITY_MAP, AdsFile, rule_columns
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
    given: pa.RecordBatch, file: AdsFile, schema: TargetingSchema, names: Mapping[str, IdMap]
) -> CanonicalBatch:
    """`names` has the id maps of the columns whose ids are not integers."""
    columns = {ours: given.column(theirs) for ours, theirs in file.theirs.items()}
    given_ids = columns["ad_id"]
    faults: list[RowFault] = []
    rules = [name for name in rule_columns(schema) if name in columns]
    for name in names.keys() & columns.keys():
        texts = columns[name]
        columns[name] = _numbers(name, texts, names[name], faults, file)
        if file.table.format is Format.CSV:
            faults.extend(_line_breaks(name, texts))
            faults.extend(_blanks_around(name, texts))
    if file.table.format is Format.CSV:
        _read_texts(columns, schema, rules, file.table.list_separator, faults, names.keys())
    else:
        for name in rules:
            separator = file.table.list_separator
            columns[name] = cells.rule_lists(columns[name], separator, is_csv=False)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return CanonicalBatch(batch, given_ids, tuple(faults))


def _numbers(
    name: str, ids: pa.Array, known: IdMap, faults: list[RowFault], file: AdsFile
) -> pa.Array:
    texts = cells.texts(ids)
    numbers = [None if text is None else known.find(text) for text in texts]
    nulls = ids.is_null().to_numpy(zero_copy_only=False)
    for row, (text, number, is_null) in enumerate(zip(texts, numbers, nulls, strict=True)):
        if number is not None or is_null or (text == "" and name != "ad_id"):
            continue
        reason = "is not UTF-8" if text is None else no_name(text)
        if reason is None:
            raise InputError(f"{file.address}: {name} {brief(text)} was added while it was read")
        faults.append((row, Fault(name, None if text is None else brief(text), reason)))
    return pa.array(numbers, pa.int64())


def _read_texts(
    columns: dict[str, pa.Array],
    schema: TargetingSchema,
    rules: list[str],
    separator: str | None,
    faults: list[RowFault],
    mapped: Set[str],
) -> None:
    """Read the texts of a CSV in place, by what each column means."""
    for name in rules:
        faults.extend(_line_breaks(name, columns[name]))
        columns[name] = cells.split_cells(columns[name], separator)
    for name in ("ad_id", *schema.entities):
        if name in mapped or name not in columns:
            continue
        ads_remedy = "--id-map, or id_map in tables.yaml, numbers such ads"
        remedy = ads_remedy if name == "ad_id" else ENTITY_MAP
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
