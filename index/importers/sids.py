"""The import, from top to bottom."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.importers.items import accept_items, distinct_sids, item_rows
from grace.index.importers.json_items import read_index_json, read_json_lines
from grace.index.importers.npy import open_codes, read_npy
from grace.index.progress import Advance, Progress
from grace.index.rejects import item_rejects
from grace.index.snapshot import MAX_SID_LENGTH, require_sids
from grace.index.tables.rows import Rows
from grace.index.tables.sid_table import write_sid_table

_JSON = {".json": read_index_json, ".jsonl": read_json_lines, ".ndjson": read_json_lines}


@dataclass(frozen=True, slots=True)
class ImportReport:
    out: Path
    sid_space: str
    vocab_sizes: tuple[int, ...]
    read: int  # items in the file
    items: int  # in the table
    sids: int  # distinct ones in the table
    rejects: dict[str, int]  # by reason
    reject_file: Path | None

    def to_json(self) -> dict[str, Any]:
        reject_file = None if self.reject_file is None else str(self.reject_file)
        return {**asdict(self), "out": str(self.out), "reject_file": reject_file}


def import_sids(spec: ImportSpec, progress: Progress) -> ImportReport:
    check_spec(spec)
    rejects = item_rejects(spec.max_rejects, spec.reject_file)
    length = spec.sid_length if spec.vocab_sizes is None else len(spec.vocab_sizes)
    parts = _reading(spec, length, progress)
    items = accept_items(str(spec.source), parts, length, spec.vocab_sizes, rejects)
    if not len(items.ids):
        listed = f"all {items.read} items were refused, see {rejects.write()}; "
        raise InputError(
            f"{spec.source}: {listed if items.read else 'no items; '}nothing to import"
        )
    advance = _step(progress, "write", len(items.ids))
    sids = items.tokens
    write_sid_table(spec.out, items.ids, sids, spec.sid_space, items.vocab_sizes, advance)
    reject_file = rejects.write()
    if reject_file is None:
        spec.reject_file.unlink(missing_ok=True)  # the list of an earlier import would mislead
    return ImportReport(
        out=spec.out,
        sid_space=spec.sid_space,
        vocab_sizes=items.vocab_sizes,
        read=items.read,
        items=len(items.ids),
        sids=distinct_sids(items.tokens),
        rejects=rejects.by_reason(),
        reject_file=reject_file,
    )


def _reading(spec: ImportSpec, length: int | None, progress: Progress) -> Iterator[Rows]:
    if spec.source.suffix.lower() == ".npy":
        codes = open_codes(spec.source, length, spec.sid_length is not None)
        advance = _step(progress, "read items", len(codes))
        return read_npy(spec.source, codes, spec.ids, advance)
    read = _JSON[spec.source.suffix.lower()]
    advance = _step(progress, "read bytes", spec.source.stat().st_size)
    return item_rows(str(spec.source), read(spec.source, advance), spec.sid_length)


def _step(progress: Progress, name: str, total: int) -> Advance:
    progress(name, 0, total)
    return lambda done: progress(name, done, total)


def check_spec(spec: ImportSpec) -> None:
    """Raises InputError before any work is done and any file touched."""
    _check_tokens(spec)
    suffix = spec.source.suffix.lower()
    if suffix not in (*_JSON, ".npy"):
        raise InputError(
            f"{spec.source}: the name must end in .json (an index of items), .jsonl (an item a "
            "line) or .npy (an array of codes)"
        )
    if spec.ids is not None and suffix != ".npy":
        raise InputError(f"{spec.ids}: ids belong to a .npy; {spec.source} names its items itself")
    for path in (spec.source, spec.ids):
        if path is not None and not path.is_file():
            raise InputError(f"{path}: no such file")
    _check_files(spec)
    if spec.out.exists() and not spec.force:
        raise InputError(f"{spec.out}: exists; --force replaces it")
    if not spec.out.parent.is_dir():
        raise InputError(f"{spec.out.parent}: no such folder; make it first")


def _check_tokens(spec: ImportSpec) -> None:
    sizes = spec.vocab_sizes
    require_sids(spec.sid_space, (1,) if sizes is None else sizes)
    if spec.sid_length is not None and not 1 <= spec.sid_length <= MAX_SID_LENGTH:
        raise InputError(f"SID length {spec.sid_length}: must be 1 to {MAX_SID_LENGTH}")
    if sizes is not None and spec.sid_length not in (None, len(sizes)):
        raise InputError(
            f"vocab sizes {sizes}: {len(sizes)} positions, but the SID length is "
            f"{spec.sid_length}: leave one option out"
        )


def _check_files(spec: ImportSpec) -> None:
    """Refuse an output that is also an input, even under another name."""
    written = {"the table": spec.out, "the list of rejects": spec.reject_file}
    for what, path in written.items():
        if path.is_dir():
            raise InputError(f"{path}: {what} cannot be written there, it is a folder; name a file")
    if _same(*written.values()):
        both = " and ".join(written)
        raise InputError(f"{spec.out}: would be {both}; name another --out")
    read = [path for path in (spec.source, spec.ids) if path is not None]
    for path, (what, target) in product(read, written.items()):
        if _same(path, target):
            raise InputError(f"{path}: is read, and would be {what}; name another --out")


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
