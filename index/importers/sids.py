"""The import, from top to bottom."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.configs.options import ImportSpec
from grace.index.importers.ads_table import AdsToJoin, sid_metadata, write_items, write_joined
from grace.index.importers.items import (
    AcceptedItems,
    ItemBatch,
    SidRule,
    accept_items,
    batches,
    distinct_sids,
)
from grace.index.importers.json_items import read_index_json, read_json_lines
from grace.index.importers.npy import open_codes, read_npy
from grace.index.progress import Advance, Progress
from grace.index.rejects import RejectLog, item_rejects
from grace.index.snapshot import MAX_SID_LENGTH, require_sids
from grace.index.tables.item_numbers import IdMap, IntegerIds, map_lock

_JSON = {".json": read_index_json, ".jsonl": read_json_lines, ".ndjson": read_json_lines}

_KEY_OF_NAMES = "--key names the ads' column that has it, or --id-map numbers such items"


@dataclass(frozen=True, slots=True)
class ImportReport:
    out: Path
    sid_space: str
    vocab_sizes: tuple[int, ...]
    items: int  # in the file
    ads: int  # in the table
    sids: int  # distinct ones in the table
    unused_items: int  # good ones that no ad names
    rejects: dict[str, int]  # by reason
    reject_file: Path | None

    def to_json(self) -> dict[str, Any]:
        reject_file = None if self.reject_file is None else str(self.reject_file)
        return {**asdict(self), "out": str(self.out), "reject_file": reject_file}


def import_sids(spec: ImportSpec, progress: Progress) -> ImportReport:
    check_spec(spec)
    ads = None
    if spec.ads is not None:
        ads = AdsToJoin(spec.ads, "ad_id" if spec.key is None else spec.key)
    rejects = item_rejects(spec.max_rejects, spec.reject_file)
    items, names = _collected(spec, ads, rejects, progress)
    refused_items, rows = len(rejects), len(items.numbers) if ads is None else ads.rows
    advance = _step(progress, "write", rows)
    used = np.ones(len(items.numbers), np.bool_)
    if ads is None:
        metadata = sid_metadata(spec.sid_space, items.vocab_sizes)
        write_items(spec.out, "ad_id", pa.array(items.numbers), items.tokens, metadata, advance)
    else:
        texts = names if ads.key_is_text else None
        used = write_joined(spec.out, items, texts, ads, spec.sid_space, rejects, advance)
    reject_file = rejects.write()
    if reject_file is None:
        spec.reject_file.unlink(missing_ok=True)  # the list of an earlier import would mislead
    return ImportReport(
        out=spec.out,
        sid_space=spec.sid_space,
        vocab_sizes=items.vocab_sizes,
        items=items.read,
        ads=rows - (len(rejects) - refused_items),
        sids=distinct_sids(items.tokens[used]),
        unused_items=int((~used).sum()),
        rejects=rejects.by_reason(),
        reject_file=reject_file,
    )


def _collected(
    spec: ImportSpec, ads: AdsToJoin | None, rejects: RejectLog, progress: Progress
) -> tuple[AcceptedItems, IdMap | None]:
    """Return the items, and their names if ids are not integers, after writing the id map."""
    if spec.id_map is not None and ads is not None and ads.key_is_text:
        raise InputError(
            f"{spec.ads}: column {ads.key!r} names items by their own ids; drop --id-map"
        )
    with nullcontext() if spec.id_map is None else map_lock(spec.id_map):
        names = _names(spec, ads)
        parts = _reading(spec, progress)
        integers = IntegerIds() if ads is None else IntegerIds(_KEY_OF_NAMES)
        numbering = integers if names is None else names
        items = accept_items(str(spec.source), parts, numbering, spec.vocab_sizes, rejects)
        if not len(items.numbers):
            listed = f"all {items.read} items were refused, see {rejects.write()}; "
            raise InputError(
                f"{spec.source}: {listed if items.read else 'no items; '}nothing to import"
            )
        # Before the table: no number that a table uses may ever be given to another item.
        if spec.id_map is not None and names is not None:
            names.write(spec.id_map)
    return items, names


def _names(spec: ImportSpec, ads: AdsToJoin | None) -> IdMap | None:
    """None: item ids are integers."""
    if spec.id_map is not None:
        return IdMap.read(spec.id_map)
    return IdMap() if ads is not None and ads.key_is_text else None


def _reading(spec: ImportSpec, progress: Progress) -> Iterator[ItemBatch]:
    length = len(spec.vocab_sizes) if spec.vocab_sizes is not None else spec.sid_length
    cut = spec.sid_length is not None
    if spec.source.suffix.lower() == ".npy":
        codes = open_codes(spec.source, length, cut)
        advance = _step(progress, "read items", len(codes))
        return read_npy(spec.source, codes, spec.ids, advance)
    read = _JSON[spec.source.suffix.lower()]
    advance = _step(progress, "read bytes", spec.source.stat().st_size)
    return batches(str(spec.source), read(spec.source, advance), SidRule(length, cut))


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
    if spec.key is not None and spec.ads is None:
        raise InputError(f"--key {spec.key}: names a column of an ads table; give --ads, too")
    for path in (spec.source, spec.ids, spec.ads):
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
    """Refuse an output that is also an input or another output, even under another name."""
    _require_no_folder("the table", spec.out)
    written = {"the table": spec.out, "the list of rejects": spec.reject_file}
    if spec.id_map is not None:
        written["the id map"] = spec.id_map
    for what, path in written.items():
        _require_no_folder(what, path)
    for one, other in combinations(written, 2):
        if _same(written[one], written[other]):
            raise InputError(f"{written[one]}: would be {one} and {other}; {_remedy(written)}")
    read = [path for path in (spec.source, spec.ids, spec.ads) if path is not None]
    for path, (what, target) in product(read, written.items()):
        if _same(path, target):
            raise InputError(f"{path}: is read, and would be {what}; {_remedy(written)}")


def _require_no_folder(what: str, path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: {what} cannot be written there, it is a folder; name a file")


def _remedy(written: Mapping[str, Path]) -> str:
    return f"name another --out{' or --id-map' if 'the id map' in written else ''}"


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
