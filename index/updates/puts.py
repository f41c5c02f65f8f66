"""Rows of ads that are put: each is a JSON object, as a line of an ads table in JSON lines is one.

All rows are read together. Where that fails, those are that have values of the same types. Then
halves of them are, until the faulty rows are alone.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.builder.batches import AdsReading
from grace.index.changes.change import Changes, read_puts
from grace.index.rejects import Reject
from grace.index.snapshot import Snapshot
from grace.index.tables.json_lines import batches, read_header
from grace.index.updates.update import AdUpdate, read_update

MOST_FAILED = 256
"""The most rows and runs of rows that fail before a run is refused as a whole."""

_ADDRESS = "puts"
_MOST_LEVELS = 64  # Arrow and Python read each level within the one above: their stacks have an end
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedPut:
    place: int  # among the rows, from 0
    ad_id: int  # 0 if it cannot be read
    column: str  # the one with the fault, or empty
    fault: str  # in words, without the column

    @property
    def text(self) -> str:
        return f"{self.column}: {self.fault}" if self.column else self.fault


@dataclass(frozen=True, slots=True)
class TakenPuts:
    """Rows as ads of a snapshot's schema and SID space."""

    pieces: tuple[Changes, ...]  # ads that were read together; usually there is one piece
    ids: tuple[int, ...]  # of the ads that are taken, in the order of their rows
    refused: tuple[RefusedPut, ...]  # by place


def take_puts(snapshot: Snapshot, rows: Sequence[bytes], threads: int) -> TakenPuts:
    reading = AdsReading(snapshot.schema, snapshot.trie.vocab_sizes)
    pieces: list[Changes] = []
    taken: dict[int, int] = {}  # ids by place
    refused: list[RefusedPut] = []
    runs, failed = [[*range(len(rows))]] if rows else [], 0
    while runs:
        run = runs.pop()
        try:
            piece, rejects = read_puts(reading, _batch([rows[place] for place in run]), threads)
        except InputError as error:
            failed += 1
            if len(run) > 1 and failed <= MOST_FAILED:
                half = len(run) // 2
                runs += (failed == 1 and _alike(rows)) or [run[half:], run[:half]]
                continue
            fault = str(error).removeprefix(f"{_ADDRESS}: ")
            if len(run) == 1:
                fault = fault.removeprefix("row 1: ")
            else:
                fault = f"one of {len(run)} rows that were read together: {fault}"
            refused += (RefusedPut(place, 0, "", fault) for place in run)
            continue
        pieces.append(piece)
        refused += (_refusal(run[reject.row], reject) for reject in rejects)
        out = {reject.row for reject in rejects}
        kept = (place for row, place in enumerate(run) if row not in out)
        ids = () if piece.puts is None else piece.puts.columns.ad_ids.tolist()
        taken |= zip(kept, ids, strict=True)
    ids = tuple(taken[place] for place in sorted(taken))
    return TakenPuts(tuple(pieces), ids, tuple(sorted(refused, key=lambda each: each.place)))


def _alike(rows: Sequence[bytes]) -> list[list[int]]:
    """Return the places of rows that can be read together, or nothing if these are all.

    A column of one row may have texts, and that of another row numbers: of `title` both are taken.
    """
    places_of: dict[frozenset[tuple[_Path, object]], list[int]] = {}
    for place, row in enumerate(rows):
        try:
            kinds = frozenset(_kinds(json.loads(row, strict=False), ()))
        except (ValueError, RecursionError):
            kinds = frozenset({(("type",), None)})
        places_of.setdefault(kinds, []).append(place)
    runs: list[tuple[dict[_Path, object], list[int]]] = []
    for kinds, places in places_of.items():
        for known, run in runs:
            if all(known.get(path, kind) == kind for path, kind in kinds):
                known.update(kinds)
                run += places
                break
        else:
            runs.append((dict(kinds), places))
    return [sorted(run) for _, run in runs] if len(runs) > 1 else []


def _kinds(value: object, path: _Path) -> Iterator[tuple[_Path, object]]:
    """Yield how each name is written, and the type of each value but null."""
    if value is not None:
        yield ("type", *path), type(value)
    for name, each in value.items() if isinstance(value, dict) else ():
        yield ("name", *path, name.casefold()), name
        yield from _kinds(each, (*path, name.casefold()))
    for each in value if isinstance(value, list) else ():
        yield from _kinds(each, (*path, ""))


def _refusal(place: int, reject: Reject) -> RefusedPut:
    ad_id, fault = reject.id, reject.fault
    value = "" if fault.value is None else f"{fault.value}: "
    known = ad_id if isinstance(ad_id, int) else 0
    return RefusedPut(place, known, fault.column, f"{value}{fault.reason}")


def read_kept(message: bytes) -> AdUpdate:
    """Read an update of the log, whose rows were taken once."""
    update = read_update(message, bounded=False)
    rows = (json.loads(row, strict=False) for row in update.put)
    return replace(update, put_ids=tuple(row["ad_id"] for row in rows))


def _levels(line: bytes) -> int:
    """Return how many objects and lists are within each other at most."""
    codes = np.frombuffer(_TEXT.sub(b"", line), np.uint8)
    steps = np.isin(codes, [*b"{["]).astype(np.int32)
    steps -= np.isin(codes, [*b"}]"])
    return int(steps.cumsum().max())


def _batch(rows: Sequence[bytes]) -> pa.RecordBatch:
    lines = []
    for place, row in enumerate(rows, start=1):
        line = row.replace(b"\n", b" ").replace(b"\r", b" ").strip(b" \t")
        # Between such lines, no object can begin in one and end in another.
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise InputError(f"{_ADDRESS}: row {place}: not a JSON object; send one for each ad")
        if line.count(b"{") + line.count(b"[") > _MOST_LEVELS and _levels(line) > _MOST_LEVELS:
            fault = f"more than {_MOST_LEVELS} objects and lists within each other; send fewer"
            raise InputError(f"{_ADDRESS}: row {place}: {fault}")
        lines.append(line)
    stream = BytesIO(b"\n".join(lines))
    schema, found = read_header(stream, _ADDRESS)
    if found != len(rows):
        raise InputError(f"{_ADDRESS}: {found} JSON objects; send one for each ad")
    stream.seek(0)
    table = pa.Table.from_batches(batches(stream, _ADDRESS, schema, schema.names, found))
    return table.combine_chunks().to_batches()[0]
