"""The import, from top to bottom."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.importers.accepted_items import AcceptedItems, accept_items, distinct_sids
from grace.index.importers.ads_table import AdsToJoin, write_items, write_joined
from grace.index.importers.index_json import read_index_json
from grace.index.importers.item_batches import ItemBatch, SidRule, batches
from grace.index.importers.item_numbers import IdMap, IntegerIds, map_lock
from grace.index.importers.json_lines import read_json_lines
from grace.index.importers.npy import open_codes, read_npy
from grace.index.importers.spec import ImportSpec, check_spec
from grace.index.rejects import RejectLog, item_rejects

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""

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
    used = _write(spec, items, names, ads, rejects, progress)
    reject_file = rejects.write()
    if reject_file is None:
        spec.reject_file.unlink(missing_ok=True)  # the list of an earlier import would mislead
    return ImportReport(
        out=spec.out,
        sid_space=spec.sid_space,
        vocab_sizes=items.vocab_sizes,
        items=items.read,
        ads=used.ads,
        sids=distinct_sids(items.tokens[used.items]),
        unused_items=int((~used.items).sum()),
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
        numbering = names or (IntegerIds() if ads is None else IntegerIds(_KEY_OF_NAMES))
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


def _step(progress: Progress, name: str, total: int) -> Callable[[int], None]:
    progress(name, 0, total)
    return lambda done: progress(name, done, total)


@dataclass(frozen=True, slots=True)
class _Used:
    ads: int
    items: npt.NDArray[np.bool_]


def _write(
    spec: ImportSpec,
    items: AcceptedItems,
    names: IdMap | None,
    ads: AdsToJoin | None,
    rejects: RejectLog,
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
