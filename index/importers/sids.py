"""The import, from top to bottom."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.importers.index_json import read_index_json
from grace.index.importers.npy import read_codes
from grace.index.progress import Progress
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, require_sids
from grace.index.tables.cells import integers, list_parts
from grace.index.tables.rows import Rows
from grace.index.tables.sid_table import require_distinct, write_sid_table


@dataclass(frozen=True, slots=True)
class ImportReport:
    out: Path
    sid_space: str
    vocab_sizes: tuple[int, ...]
    items: int
    sids: int  # distinct ones

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out)}


def import_sids(spec: ImportSpec, progress: Progress) -> ImportReport:
    """Without vocabulary sizes, the vocabulary is as large as the tokens need."""
    _check(spec)
    if spec.source.suffix.lower() == ".npy":
        parts: Iterable[Rows] = read_codes(spec.source, spec.ids, spec.sid_length)
    else:
        parts = [read_index_json(spec.source, spec.sid_length)]
    ids, tokens = _accepted(spec, parts, progress)
    sizes = spec.vocab_sizes or tuple(int(most) + 1 for most in tokens.max(axis=0))
    write_sid_table(
        spec.out,
        ids,
        tokens,
        spec.sid_space,
        sizes,
        lambda done: progress("write", done, len(ids)),
    )
    return ImportReport(
        spec.out, spec.sid_space, sizes, items=len(ids), sids=len(np.unique(tokens, axis=0))
    )


def _accepted(
    spec: ImportSpec, parts: Iterable[Rows], progress: Progress
) -> tuple[pa.Array, npt.NDArray[np.uint16]]:
    """Return the ids and SIDs [items, L] of all items, and end at the first faulty one.

    Without any option that says it, the first SID has the right length.
    """
    length = spec.sid_length if spec.vocab_sizes is None else len(spec.vocab_sizes)
    ids, sids, done = [], [], 0
    for rows in parts:
        length = length or _first_length(rows)
        sizes = np.array(spec.vocab_sizes or (MAX_VOCAB_SIZE,) * length)
        ids.append(rows.names("item_id"))
        sids.append(rows.sids("sid", length, sizes).astype(np.uint16))
        rows.require_good("item")
        done += len(rows)
        progress("read items", done, done)
    if not done:
        raise InputError(f"{spec.source}: no items; nothing to import")
    all_ids = pa.concat_arrays(ids)
    require_distinct(str(spec.source), all_ids)
    return _as_integers(all_ids), np.concatenate(sids)


def _first_length(rows: Rows) -> int:
    counts = np.diff(list_parts(rows.lists("sid")).offsets)[:1].tolist()
    return next((count for count in counts if 1 <= count <= MAX_SID_LENGTH), 1)


def _as_integers(ids: pa.Array) -> pa.Array:
    """Return int64 if all ids are integers from 0, and texts otherwise."""
    if pa.types.is_integer(ids.type):
        return ids
    numbers, bad = integers(ids)
    return ids if bad.any() or (numbers.to_numpy() < 0).any() else numbers


def _check(spec: ImportSpec) -> None:
    """Refuse impossible options before any work is done and any file touched."""
    require_sids(spec.sid_space, (1,) if spec.vocab_sizes is None else spec.vocab_sizes)
    for fault in _faults(spec):
        raise InputError(fault)


def _faults(spec: ImportSpec) -> Iterator[str]:
    sizes, length, suffix = spec.vocab_sizes, spec.sid_length, spec.source.suffix.lower()
    if length is not None and not 1 <= length <= MAX_SID_LENGTH:
        yield f"SID length {length}: must be 1 to {MAX_SID_LENGTH}"
    if sizes is not None and length not in (None, len(sizes)):
        fault = f"{len(sizes)} positions, but the SID length is {length}: leave one option out"
        yield f"vocab sizes {sizes}: {fault}"
    if suffix not in (".json", ".npy"):
        yield (
            f"{spec.source}: the name must end in .json (an index of items) or .npy (an array of "
            "codes); `grace build --sids` reads Parquet and JSON lines of item_id and sid itself"
        )
    if spec.ids is not None and suffix != ".npy":
        yield f"{spec.ids}: ids belong to a .npy; {spec.source} names its items itself"
    if spec.out.is_dir():
        yield f"{spec.out}: is a folder; name a file"
    for path in filter(None, (spec.source, spec.ids)):
        if not path.is_file():
            yield f"{path}: no such file"
        if spec.out.exists() and spec.out.samefile(path):
            yield f"{path}: is read, and would be the table; name another --out"
    if spec.out.exists() and not spec.force:
        yield f"{spec.out}: exists; --force replaces it"
    if not spec.out.parent.is_dir():
        yield f"{spec.out.parent}: no such folder; make it first"
