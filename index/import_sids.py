"""Import Semantic IDs that other projects publish, as a table of `item_id` and `sid`.

The source is an `.index.json` of LETTER, LC-Rec or MiniOneRec: {"0": ["<a_12>", "<b_3>"], ...}. A
token may also be `<s_a_12>`, or an integer. A faulty item ends the import. A build joins the table
that tables.yaml names as `sids` to the ads.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.configs.strict_json import parse_object
from grace.index.progress import Progress
from grace.index.rejects import Fault, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, require_sids
from grace.index.tables.addresses import Format
from grace.index.tables.cells import integers
from grace.index.tables.rows import Rows, other_rows
from grace.index.tables.sid_table import write_sid_table
from grace.index.tables.table_file import TableFile

_TOKEN_TEXT = re.compile(r"<(?:s_)?([A-Za-z])_([0-9]{1,6})>")


@dataclass(frozen=True, slots=True)
class ImportReport:
    out: Path
    sid_space: str
    vocab_sizes: tuple[int, ...]
    items: int
    sids: int  # distinct ones


def import_sids(spec: ImportSpec, progress: Progress) -> ImportReport:
    """Without vocabulary sizes, the vocabulary is as large as the tokens need."""
    require_sids(spec.sid_space, (1,) if spec.vocab_sizes is None else spec.vocab_sizes)
    for fault in _faults(spec):
        raise InputError(fault)
    rows, length = _read(spec)
    limits = np.array(spec.vocab_sizes or (MAX_VOCAB_SIZE,) * length)
    ids = rows.names("item_id")
    numbers, bad = integers(ids)
    if not bad.any() and (numbers.to_numpy() >= 0).all():
        ids = numbers
    tokens = rows.sids("sid", length, limits).astype(np.uint16)
    rows.require_good("item")
    sizes = spec.vocab_sizes or tuple(int(most) + 1 for most in tokens.max(axis=0))
    write_sid_table(
        spec.out, ids, tokens, spec.sid_space, sizes, lambda done: progress("write", done, len(ids))
    )
    distinct = len(np.unique(tokens, axis=0))
    return ImportReport(spec.out, spec.sid_space, sizes, items=len(ids), sids=distinct)


def _faults(spec: ImportSpec) -> Iterator[str]:
    """Yield what is impossible before any work is done and any file touched."""
    sizes, length, out = spec.vocab_sizes, spec.sid_length, spec.out
    if length is not None and not 1 <= length <= MAX_SID_LENGTH:
        yield f"SID length {length}: must be 1 to {MAX_SID_LENGTH}"
    if sizes is not None and length not in (None, len(sizes)):
        fault = f"{len(sizes)} positions, but the SID length is {length}: leave one option out"
        yield f"vocab sizes {sizes}: {fault}"
    if spec.source.suffix.lower() != ".json":
        yield (
            f"{spec.source}: the name must end in .json (an index of items); a build reads Parquet "
            "and JSON lines of item_id and sid itself: name them as `sids` in tables.yaml"
        )
    if not spec.source.is_file():
        yield f"{spec.source}: no such file"
    if out.exists():
        yield f"{out}: is already there; name another --out, or move it away"
    if not out.parent.is_dir():
        yield f"{out.parent}: no such folder; make it first"


def _read(spec: ImportSpec) -> tuple[Rows, int]:
    """Return `item_id` and `sid` of all items, and a SID's length: as asked, or the first one's."""
    try:
        items = parse_object(spec.source.read_bytes())
    except ValueError as error:
        fault = f"{error}; give an object of item ids and their tokens"
        raise InputError(f"{spec.source}: {fault}") from None
    if not items:
        raise InputError(f"{spec.source}: no items; nothing to import")
    read = [_tokens(value, spec.sid_length) for value in items.values()]
    faults = {row: each for row, each in enumerate(read) if isinstance(each, Fault)}
    sids = [None if isinstance(each, Fault) else each for each in read]
    columns = {
        "item_id": pa.array(items.keys(), pa.large_string()),
        "sid": pa.array(sids, pa.list_(pa.int64())),
    }
    file = TableFile(str(spec.source), Format.PARQUET, pa.schema([]), None)
    rows = other_rows(file, columns, "item_id")
    rows.faults.update(faults)
    length = spec.sid_length if spec.vocab_sizes is None else len(spec.vocab_sizes)
    first = len(sids[0] or ())
    return rows, length or (first if 1 <= first <= MAX_SID_LENGTH else 1)


def _tokens(value: object, most: int | None) -> list[int] | Fault:
    """Return an item's tokens, cut to `most`."""
    if not isinstance(value, list):
        return Fault("sid", brief(value), "is not a list of tokens")
    tokens: list[int] = []
    for position, token in enumerate(value[: most or MAX_SID_LENGTH + 1]):
        number = _token(token, position)
        if isinstance(number, Fault):
            return number
        tokens.append(number)
    return tokens


def _token(token: object, position: int) -> int | Fault:
    where, letter = f"token at position {position}", chr(ord("a") + position)
    if type(token) is int:  # not True, which equals 1
        number = token
    elif isinstance(token, str) and (found := _TOKEN_TEXT.fullmatch(token)):
        if found[1].lower() != letter:
            return Fault("sid", token, f"{where} must begin with <{letter}_")
        number = int(found[2])
    else:
        return Fault("sid", brief(token), f"{where} is not like <{letter}_12> or 12")
    if 0 <= number < MAX_VOCAB_SIZE:
        return number
    return Fault("sid", brief(token), f"{where} is not 0 to {MAX_VOCAB_SIZE - 1}")
