"""The first pass of a sharded build: a file of ads becomes runs on disk, ordered by first token.

A run has some millions of ads, whatever the file's size: the ads that are built, ordered by first
token; their rules; and all ad ids in ascending order. These include the ids of refused ads, since
no copy of a repeated id is built.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import renumber_rules
from grace.index.builder.batches import AdsBatch, BatchReader
from grace.index.builder.collect import CollectedAds, rule_rejects
from grace.index.builder.report import peak_memory
from grace.index.builder.rule_table import REFUSED, RuleTable
from grace.index.builder.sorting import first_use, order_by_id
from grace.index.builder.source import AdsFile, AdsSource
from grace.index.rejects import Reject
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues

SAMPLE_STEP = 1 << 10
"""The sample of a run's ids, which shows how ids are spread, has one id in this many."""

_LISTS = ("include_offsets", "include_values", "exclude_offsets", "exclude_values")
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class CollectTask:
    file_at: int  # its place among the table's files
    file: AdsFile
    reported_as: str  # the file's name in rejects
    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    scratch: Path
    max_rejects: int
    threads: int
    batch_rows: int
    run_rows: int

    def __str__(self) -> str:
        return f"reading {self.reported_as}"


@dataclass(frozen=True, slots=True)
class Run:
    """sample int64 [...]: every SAMPLE_STEP-th of the ids, ascending"""

    path: Path
    file_at: int
    token_ads: npt.NDArray[np.int64]  # [first tokens] ads that are built
    sample: npt.NDArray[np.int64]

    def bare(self) -> "Run":
        """Return where the run is, and no arrays: what travels with many tasks."""
        return replace(self, token_ads=_NOTHING, sample=_NOTHING)

    def of_tokens(self, first: int, end: int) -> "RunSlice":
        """Return the ads of first tokens first .. end - 1."""
        return RunSlice(
            self.path, int(self.token_ads[:first].sum()), int(self.token_ads[:end].sum())
        )


@dataclass(frozen=True, slots=True)
class RunSlice:
    """Ads begin .. end - 1 of a run, in the order of their first tokens."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CollectedFile:
    rows: int
    runs: tuple[Run, ...]
    rejects: tuple[tuple[Reject, ...], ...]  # batch by batch
    peak_memory_bytes: int


def collect_file(task: CollectTask) -> CollectedFile:
    """Stops early if the file alone has more rejects than the build allows."""
    source = AdsSource((task.file,), (), None, None)
    reader = BatchReader(source, task.schema, task.vocab_sizes, task.batch_rows)
    folder = Path(mkdtemp(prefix=f"file-{task.file_at:06d}-", dir=task.scratch))
    runs: list[Run] = []
    rejects: list[tuple[Reject, ...]] = []
    batches = iter(reader)
    batch = next(batches, None)
    rows = 0
    while batch is not None and sum(map(len, rejects)) <= task.max_rejects:
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        first_row = rows
        with closing(RuleTable(task.schema, task.threads)) as table:
            while batch is not None and _has_room(rows - first_row, task.run_rows, batch):
                rule_of = np.where(batch.refused, np.int32(REFUSED), np.int32(0))
                faults = table.add(batch.rules, rule_of)
                columns.append((batch.ad_ids, batch.tokens, batch.weights, rule_of))
                rejects += [
                    tuple(replace(reject, file=task.reported_as) for reject in found)
                    for found in (batch.rejects, rule_rejects(batch, task.schema, faults))
                ]
                rows += len(rule_of)
                batch = next(batches, None)
            rules = table.take()
        ad_ids, tokens, weights, rule_of = map(np.concatenate, zip(*columns, strict=True))
        del columns
        # Decoding is a batch ahead and may add values meanwhile: those of this run are all there.
        values = tuple(codes.strings() for codes in reader.set_codes)
        collected = CollectedAds(ad_ids, tokens, weights, rule_of, rules, values)
        runs.append(_write_run(folder / f"run-{len(runs):06d}", task, collected, first_row))
    return CollectedFile(rows, tuple(runs), tuple(rejects), peak_memory())


def _has_room(rows: int, run_rows: int, batch: AdsBatch) -> bool:
    return rows == 0 or rows + len(batch.ad_ids) <= run_rows


def _write_run(path: Path, task: CollectTask, ads: CollectedAds, first_row: int) -> Run:
    path.mkdir()
    known = np.flatnonzero(ads.ad_ids >= 0)
    order = known[order_by_id(ads.ad_ids[known], task.threads)]
    kept = np.flatnonzero(ads.rule_of != REFUSED)
    kept = kept[np.argsort(ads.tokens[kept, 0], kind="stable")]
    used = first_use(ads.rule_of[kept], ads.rules.num_rules)
    arrays = {
        "ids": ads.ad_ids[order],
        "id_rows": first_row + order,
        "id_refused": ads.rule_of[order] == REFUSED,
        "ad_ids": ads.ad_ids[kept],
        "tokens": ads.tokens[kept],
        "weights": ads.weights[kept],
        "rule": used.new_of[ads.rule_of[kept]],
        **_rule_arrays(*renumber_rules(ads.rules, ads.set_values, used.old_of)),
    }
    _save(path, arrays)
    token_ads = np.bincount(ads.tokens[kept, 0], minlength=task.vocab_sizes[0]).astype(np.int64)
    return Run(path, task.file_at, token_ads, ads.ad_ids[order[::SAMPLE_STEP]])


def _rule_arrays(
    rules: TargetingRules, set_values: Sequence[InternedValues]
) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {
        "bitmask": rules.bitmask,
        "bitmask_table": rules.bitmask_table,
        "set_rules": rules.set_rules,
    }
    for s, (of_set, values) in enumerate(zip(rules.sets, set_values, strict=True)):
        arrays |= {f"{name}{s}": getattr(of_set, name) for name in _LISTS}
        arrays |= {f"value_offsets{s}": values.offsets, f"value_utf8{s}": values.utf8}
    return arrays


def load_run(run: RunSlice, repeated: npt.NDArray[np.int64], sets: int) -> CollectedAds:
    """Return the ads of a slice without those of repeated ids, and only the rules they use."""
    ad_ids, tokens, weights, rule = (
        _load(run.path, name, run.begin, run.end)
        for name in ("ad_ids", "tokens", "weights", "rule")
    )
    if len(repeated):
        kept = ~np.isin(ad_ids, repeated)
        ad_ids, tokens, weights, rule = ad_ids[kept], tokens[kept], weights[kept], rule[kept]
    of_sets = (SetRules(*(_load(run.path, f"{name}{s}") for name in _LISTS)) for s in range(sets))
    bitmask, table, set_rules = (
        _load(run.path, name) for name in ("bitmask", "bitmask_table", "set_rules")
    )
    rules = TargetingRules(bitmask, table, set_rules, tuple(of_sets))
    stored = (
        InternedValues(*(_load(run.path, f"value_{name}{s}") for name in ("offsets", "utf8")))
        for s in range(sets)
    )
    used = first_use(rule, rules.num_rules)
    rules, set_values = renumber_rules(rules, [s.strings for s in stored], used.old_of)
    values = tuple(interned.strings for interned in set_values)
    return CollectedAds(ad_ids, tokens, weights, used.new_of[rule], rules, values)


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write .npy files. numpy.save does not notice if a full disk refuses the end of an array."""
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        header = np.lib.format.header_data_from_array_1_0(array)
        with (path / f"{name}.npy").open("xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.write(array.data if array.size else b"")


def open_array(path: Path, name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return array


def _load(path: Path, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
    """Return a copy, so that the rest of the file does not stay in memory."""
    return np.array(open_array(path, name)[begin:end])
