"""Rows of ads that are put: each is a JSON object, as a line of an ads table in JSON lines is one.

All rows are read together. Where that fails, halves of them are, until the faulty rows are alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain

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


@dataclass(frozen=True, slots=True)
class RefusedPut:
    """A put that is not taken.

    place   among the rows, from 0
    ad_id   0 if it cannot be read
    column  the one with the fault, or empty
    fault   in words, without the column
    """

    place: int
    ad_id: int
    column: str
    fault: str

    @property
    def text(self) -> str:
        return f"{self.column}: {self.fault}" if self.column else self.fault


@dataclass(frozen=True, slots=True)
class TakenPuts:
    """Rows as ads of a snapshot's schema and SID space.

    pieces   ads that were read together; usually there is one piece
    refused  by place
    """

    pieces: tuple[Changes, ...]
    refused: tuple[RefusedPut, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the ids of the ads that are taken, in the order of their rows."""
        read = (piece.puts.columns.ad_ids for piece in self.pieces if piece.puts is not None)
        return tuple(chain.from_iterable(ids.tolist() for ids in read))


def take_puts(snapshot: Snapshot, rows: Sequence[bytes], threads: int) -> TakenPuts:
    reading = AdsReading(snapshot.schema, snapshot.trie.vocab_sizes)
    pieces: list[Changes] = []
    refused: list[RefusedPut] = []
    runs, failed = [(0, len(rows))] if rows else [], 0
    while runs:
        begin, end = runs.pop()
        try:
            piece, rejects = read_puts(reading, _batch(rows[begin:end]), threads)
        except InputError as error:
            failed += 1
            if end - begin > 1 and failed <= MOST_FAILED:
                middle = (begin + end) // 2
                runs += [(middle, end), (begin, middle)]
                continue
            fault = str(error).removeprefix(f"{_ADDRESS}: ")
            if end - begin == 1:
                fault = fault.removeprefix("row 1: ")
            else:
                fault = f"one of {end - begin} rows that were read together: {fault}"
            refused += (RefusedPut(place, 0, "", fault) for place in range(begin, end))
            continue
        pieces.append(piece)
        refused += (_refusal(begin, reject) for reject in rejects)
    return TakenPuts(tuple(pieces), tuple(sorted(refused, key=lambda each: each.place)))


def _refusal(begin: int, reject: Reject) -> RefusedPut:
    ad_id, fault = reject.id, reject.fault
    value = "" if fault.value is None else f"{fault.value}: "
    known = ad_id if isinstance(ad_id, int) else 0
    return RefusedPut(begin + reject.row, known, fault.column, f"{value}{fault.reason}")


def read_kept(message: bytes) -> AdUpdate:
    """Read an update of the log, whose rows were taken once."""
    update = read_update(message, bounded=False)
    rows = (json.loads(row, strict=False) for row in update.put)
    return replace(update, put_ids=tuple(row["ad_id"] for row in rows))


def _batch(rows: Sequence[bytes]) -> pa.RecordBatch:
    lines = []
    for place, row in enumerate(rows, start=1):
        line = row.replace(b"\n", b" ").replace(b"\r", b" ").strip(b" \t")
        # Between such lines, no object can begin in one and end in another.
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise InputError(f"{_ADDRESS}: row {place}: not a JSON object; send one for each ad")
        lines.append(line)
    stream = BytesIO(b"\n".join(lines))
    schema, found = read_header(stream, _ADDRESS)
    if found != len(rows):
        raise InputError(f"{_ADDRESS}: {found} JSON objects; send one for each ad")
    stream.seek(0)
    table = pa.Table.from_batches(batches(stream, _ADDRESS, schema, schema.names, found))
    return table.combine_chunks().to_batches()[0]
