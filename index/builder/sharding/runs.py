"""First pass of a sharded build: a file of ads becomes runs on disk, cut by first token.

A run holds some millions of ads, whatever the file's size: ads ordered by first token with where
each token's begin, the rules of the run, and all its ad ids in ascending order, those of refused
ads too, since no copy of a repeated id is built.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import gather_spans, renumber_rules
from grace.index.builder.batches import AdsBatch, BatchReader
from grace.index.builder.collect import CollectedAds, rule_rejects
from grace.index.builder.peak import peak_memory
from grace.index.builder.rejects import Reject
from grace.index.builder.rule_table import REFUSED, RawRules, RuleTable
from grace.index.builder.sharding.join_rules import RuleSource, SetRuleSource
from grace.index.builder.sorting import first_use, order_by_id
from grace.index.builder.source import AdsFile, AdsSource
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues

__all__ = ["CollectTask", "CollectedFile", "Run", "RunAds", "RunSlice", "collect_file", "load_run"]

SAMPLE_STEP = 1 << 10
"""Every so many ids of a run tell how the ids are spread."""


@dataclass(frozen=True, slots=True)
class CollectTask:
    file_at: int  # its place among the table's files
    file: AdsFile
    told_as: str  # what rejects call the file
    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    scratch: Path
    max_rejects: int
    threads: int
    batch_rows: int
    run_rows: int

    def __str__(self) -> str:
        return f"reading {self.told_as}"


@dataclass(frozen=True, slots=True)
class Run:
    """sample int64 [...]: every SAMPLE_STEP-th of the ids, ascending"""

    path: Path
    file_at: int
    token_ads: npt.NDArray[np.int64]  # [first tokens] ads that are built
    sample: npt.NDArray[np.int64]

    def of_tokens(self, first: int, end: int) -> "RunSlice":
        """The ads of first tokens first .. end - 1."""
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
    rejects: tuple[tuple[Reject, ...], ...]  # in the portions in which they were met
    peak_memory_bytes: int


def collect_file(task: CollectTask) -> CollectedFile:
    """Stops early once the file alone has more rejects than the build allows."""
    source = AdsSource((task.file,), (), None, None)
    reader = BatchReader(source, task.schema, task.vocab_sizes, task.batch_rows)
    folder = Path(mkdtemp(prefix=f"file-{task.file_at:06d}-", dir=task.scratch))
    runs: list[Run] = []
    rejects: list[tuple[Reject, ...]] = []
    batches = iter(reader)
    batch = next(batches, None)
    rows = 0
    while batch is not None and sum(map(len, rejects)) <= task.max_rejects:
        columns = _Columns(len(task.vocab_sizes), rows)
        with RuleTable(task.schema, task.threads) as table:
            while batch is not None and columns.has_room(task.run_rows, batch):
                rule_of = np.where(batch.refused, np.int32(REFUSED), np.int32(0))
                faults = table.add(batch.rules, rule_of)
                columns.add(batch, rule_of)
                rejects += [
                    tuple(replace(reject, file=task.told_as) for reject in found)
                    for found in (batch.rejects, rule_rejects(batch, task.schema, faults))
                ]
                batch = next(batches, None)
            rules = table.take()
        rows += columns.rows
        # Decoding runs ahead and may add values meanwhile: those of this run are all there.
        values = tuple(codes.strings() for codes in reader.set_codes)
        path = folder / f"run-{len(runs):06d}"
        runs.append(_write_run(path, task, columns, rules, values))
    return CollectedFile(rows, tuple(runs), tuple(rejects), peak_memory())


class _Columns:
    """The columns of a run, batch by batch."""

    def __init__(self, sid_length: int, first_row: int) -> None:
        self.rows = 0
        self.first_row = first_row
        self._sid_length = sid_length
        self._batches: list[tuple[npt.NDArray[Any], ...]] = []

    def has_room(self, run_rows: int, batch: AdsBatch) -> bool:
        return self.rows == 0 or self.rows + len(batch.ad_ids) <= run_rows

    def add(self, batch: AdsBatch, rule_of: npt.NDArray[np.int32]) -> None:
        self._batches.append((batch.ad_ids, batch.tokens, batch.weights, rule_of))
        self.rows += len(rule_of)

    def joined(self) -> tuple[npt.NDArray[Any], ...]:
        """ad_ids, tokens, weights, rule_of; they are held here no longer."""
        columns = tuple(map(np.concatenate, zip(*self._batches, strict=True)))
        self._batches.clear()
        return columns


def _write_run(
    path: Path,
    task: CollectTask,
    columns: _Columns,
    rules: RawRules,
    values: tuple[list[str], ...],
) -> Run:
    path.mkdir()
    ad_ids, tokens, weights, rule_of = columns.joined()
    known = np.flatnonzero(ad_ids >= 0)
    order = known[order_by_id(ad_ids[known], task.threads)]
    _save(path, "ids", ad_ids[order])
    _save(path, "id_rows", columns.first_row + order)
    _save(path, "id_refused", rule_of[order] == REFUSED)
    kept = np.flatnonzero(rule_of != REFUSED)
    kept = kept[np.argsort(tokens[kept, 0], kind="stable")]
    used = first_use(rule_of[kept], len(rules.parts))
    collected = CollectedAds(ad_ids[kept], tokens[kept], weights[kept], rule_of, rules, values)
    _save(path, "ad_ids", collected.ad_ids)
    _save(path, "tokens", collected.tokens)
    _save(path, "weights", collected.weights)
    _save(path, "rule", used.new_of[rule_of[kept]])
    _save_rules(path, *renumber_rules(collected, used.old_of))
    token_ads = np.bincount(tokens[kept, 0], minlength=task.vocab_sizes[0]).astype(np.int64)
    return Run(path, task.file_at, token_ads, ad_ids[order[::SAMPLE_STEP]])


def _save(path: Path, name: str, array: npt.NDArray[Any]) -> None:
    """As numpy.save, which does not notice if a full disk refuses the end of the array."""
    array = np.ascontiguousarray(array)
    with (path / f"{name}.npy").open("xb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data if array.size else b"")


def _save_rules(path: Path, rules: TargetingRules, set_values: tuple[InternedValues, ...]) -> None:
    _save(path, "bitmask", rules.bitmask)
    _save(path, "bitmask_table", rules.bitmask_table)
    _save(path, "set_rules", rules.set_rules)
    for s, (of_set, values) in enumerate(zip(rules.sets, set_values, strict=True)):
        _save(path, f"include_offsets{s}", of_set.include_offsets)
        _save(path, f"include_values{s}", of_set.include_values)
        _save(path, f"exclude_offsets{s}", of_set.exclude_offsets)
        _save(path, f"exclude_values{s}", of_set.exclude_values)
        _save(path, f"value_offsets{s}", values.offsets)
        _save(path, f"value_utf8{s}", values.utf8)


@dataclass(frozen=True, slots=True)
class RunAds:
    """A run's ads of some first tokens, and their rules alone.

    ad_ids int64 [ads], tokens uint16 [ads, L], weights float32 [ads], rule int32 [ads]
    """

    ad_ids: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]
    rule: npt.NDArray[np.int32]
    rules: RuleSource


def load_run(run: RunSlice, repeated: npt.NDArray[np.int64], sets: int) -> RunAds:
    """The ads of a slice, without those of repeated ids."""
    ad_ids, tokens, weights, rule = (
        _load(run.path, name, run.begin, run.end)
        for name in ("ad_ids", "tokens", "weights", "rule")
    )
    if len(repeated):
        kept = ~np.isin(ad_ids, repeated)
        ad_ids, tokens, weights, rule = ad_ids[kept], tokens[kept], weights[kept], rule[kept]
    bitmask = _load(run.path, "bitmask")
    used = first_use(rule, len(bitmask))
    set_rules = _load(run.path, "set_rules")[used.old_of]
    bitmask_table, new_bitmask = _rows_in_use(run.path, bitmask[used.old_of])
    of_sets = []
    for s in range(sets):
        source, set_rules[:, s] = _set_in_use(run.path, s, np.ascontiguousarray(set_rules[:, s]))
        of_sets.append(source)
    rules = RuleSource(new_bitmask, bitmask_table, set_rules, tuple(of_sets))
    return RunAds(ad_ids, tokens, weights, used.new_of[rule], rules)


def _rows_in_use(
    path: Path, bitmask: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    table = _load(path, "bitmask_table")
    used = first_use(bitmask, len(table))
    return table[used.old_of], used.new_of[bitmask]


def _set_in_use(
    path: Path, s: int, set_rules: npt.NDArray[np.int32]
) -> tuple[SetRuleSource, npt.NDArray[np.int32]]:
    rules = SetRules(
        *(
            _load(path, f"{name}{s}")
            for name in ("include_offsets", "include_values", "exclude_offsets", "exclude_values")
        )
    )
    used = first_use(set_rules, rules.num_rules)
    lists: list[npt.NDArray[Any]] = []
    for offsets, ids in (
        (rules.include_offsets, rules.include_values),
        (rules.exclude_offsets, rules.exclude_values),
    ):
        begins = offsets[used.old_of]
        lists += gather_spans(ids, begins, offsets[used.old_of + 1] - begins)
    values = InternedValues(_load(path, f"value_offsets{s}"), _load(path, f"value_utf8{s}"))
    return SetRuleSource(values, *lists), used.new_of[set_rules]


def _load(path: Path, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
    """A copy, so that the rest of the file does not stay in memory."""
    return np.array(np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)[begin:end])
