"""The import, top to bottom."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import InputError
from index.importers.ads_file import AdsToJoin, write_items, write_joined
from index.importers.collect import CollectedItems, collect_items, distinct_sids
from index.importers.index_json import read_index_json
from index.importers.items import MAX_SID_LENGTH, MAX_TOKEN, ItemBatch, SidRule, batches
from index.importers.json_lines import read_json_lines
from index.importers.npy import open_codes, read_npy
from index.importers.numbering import IdMap, IntegerIds
from index.importers.rejects import ItemRejects
from index.snapshot import is_sid_space

__all__ = ["ImportReport", "ImportSpec", "import_sids"]

Progress = Callable[[str, int, int], None]
"""Told the step's name, how much of it is done, and how much there is."""

_JSON = {".json": read_index_json, ".jsonl": read_json_lines, ".ndjson": read_json_lines}


@dataclass(frozen=True, slots=True)
class ImportSpec:
    source: Path  # .json, .jsonl or .npy
    out: Path
    sid_space: str
    ids: Path | None = None  # of the rows of a .npy; None: their numbers
    vocab_sizes: tuple[int, ...] | None = None  # None: as large as the tokens need
    sid_length: int | None = None  # longer SIDs are cut to it
    ads: Path | None = None  # a table to add the SIDs to; None: every item is an ad
    key: str = "ad_id"  # its column that names the item
    id_map: Path | None = None  # numbers for items; None: their ids are numbers
    max_rejects: int = 0
    force: bool = False

    @property
    def reject_file(self) -> Path:
        return self.out.with_suffix(".rejects.jsonl")


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
        return {
            "out": str(self.out),
            "sid_space": self.sid_space,
            "vocab_sizes": list(self.vocab_sizes),
            "items": self.items,
            "ads": self.ads,
            "sids": self.sids,
            "unused_items": self.unused_items,
            "rejects": self.rejects,
            "reject_file": None if self.reject_file is None else str(self.reject_file),
        }


def import_sids(spec: ImportSpec, progress: Progress) -> ImportReport:
    _check(spec)
    ads = None if spec.ads is None else AdsToJoin(spec.ads, spec.key)
    names = _names(spec, ads)
    rejects = ItemRejects(spec.max_rejects, spec.reject_file)
    parts = _reading(spec, progress)
    items = collect_items(str(spec.source), parts, names or IntegerIds(), spec.vocab_sizes, rejects)
    if not len(items.numbers):
        listed = f"all {items.read} items were refused, see {rejects.write()}; "
        raise InputError(
            f"{spec.source}: {listed if items.read else 'no items; '}nothing to import"
        )
    # Before the table: no number that a table uses may ever be given to another item.
    if spec.id_map is not None and names is not None:
        names.write(spec.id_map)
    used = _write(spec, items, names, ads, rejects, progress)
    return ImportReport(
        out=spec.out,
        sid_space=spec.sid_space,
        vocab_sizes=items.vocab_sizes,
        items=items.read,
        ads=used.ads,
        sids=distinct_sids(items.tokens[used.items]),
        unused_items=int((~used.items).sum()),
        rejects=rejects.by_reason(),
        reject_file=rejects.write(),
    )


def _check(spec: ImportSpec) -> None:
    if not is_sid_space(spec.sid_space):
        raise InputError(f"SID space {spec.sid_space[:80]!r}: use 1 to 255 printable characters")
    sizes = spec.vocab_sizes
    if sizes is not None and not (
        1 <= len(sizes) <= MAX_SID_LENGTH and all(1 <= size <= MAX_TOKEN + 1 for size in sizes)
    ):
        raise InputError(
            f"vocab sizes {sizes}: 1 to {MAX_SID_LENGTH} of them, each 1 to {MAX_TOKEN + 1}"
        )
    if spec.sid_length is not None and not 1 <= spec.sid_length <= MAX_SID_LENGTH:
        raise InputError(f"SID length {spec.sid_length}: 1 to {MAX_SID_LENGTH}")
    if sizes is not None and spec.sid_length not in (None, len(sizes)):
        raise InputError(
            f"vocab sizes {sizes} are not of {spec.sid_length} tokens: drop one option"
        )
    suffix = spec.source.suffix.lower()
    if suffix not in (*_JSON, ".npy"):
        raise InputError(
            f"{spec.source}: the name must end in .json (an index of items), .jsonl (an item a "
            "line) or .npy (an array of codes)"
        )
    if spec.ids is not None and suffix != ".npy":
        raise InputError(f"{spec.ids}: ids belong to a .npy; {spec.source} names its items itself")
    for path in (spec.source, spec.ids, spec.ads):
        if path is not None and not path.is_file():
            raise InputError(f"{path}: no such file")
    if spec.out in (spec.source, spec.ids):
        raise InputError(f"{spec.out}: is what is read; name another --out")
    if spec.out.exists() and not spec.force:
        raise InputError(f"{spec.out}: exists; --force replaces it")
    if not spec.out.parent.is_dir():
        raise InputError(f"{spec.out.parent}: no such folder")


def _names(spec: ImportSpec, ads: AdsToJoin | None) -> IdMap | None:
    """None: item ids are integers."""
    if spec.id_map is not None:
        if ads is not None and ads.key_is_text:
            raise InputError(
                f"{spec.ads}: column {spec.key!r} names items by their own ids; drop --id-map"
            )
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


def _step(progress: Progress, name: str, total: int) -> Callable[[int], None]:
    progress(name, 0, total)
    return lambda done: progress(name, done, total)


@dataclass(frozen=True, slots=True)
class _Used:
    ads: int
    items: npt.NDArray[np.bool_]


def _write(
    spec: ImportSpec,
    items: CollectedItems,
    names: IdMap | None,
    ads: AdsToJoin | None,
    rejects: ItemRejects,
    progress: Progress,
) -> _Used:
    if ads is None:
        write_items(spec.out, items, spec.sid_space, _step(progress, "write", len(items.numbers)))
        return _Used(len(items.numbers), np.ones(len(items.numbers), np.bool_))
    refused_before = len(rejects)
    texts = names if ads.key_is_text else None
    advance = _step(progress, "write", ads.rows)
    named = write_joined(spec.out, items, texts, ads, spec.sid_space, rejects, advance)
    return _Used(ads.rows - (len(rejects) - refused_before), named)
