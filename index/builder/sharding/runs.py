"""The first pass of a sharded build: files of ads become runs on disk, and ids are compared.

A run has some millions of ads, whatever the file's size: the ads that are built, ordered by first
token; their rules; and all ad ids in ascending order. These include the ids of refused ads, since
no copy of a repeated id is built.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import renumber_rules
from grace.index.builder.batches import AdsBatch, AdsReading, BatchReader
from grace.index.builder.build import BuildSpec
from grace.index.builder.collect import CollectedAds, rule_rejects
from grace.index.builder.item_sids import open_item_sids
from grace.index.builder.report import peak_memory
from grace.index.builder.rule_table import REFUSED, RuleTable
from grace.index.builder.sorting import first_use, order_by_id
from grace.index.builder.source import AdsFile, AdsSource
from grace.index.rejects import Reject
from grace.index.storage.array_file import write_array
from grace.index.storage.folder import open_root
from grace.index.tables.item_numbers import IdMap
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues

SAMPLE_STEP = 1 << 10
"""The sample of a run's ids, which shows how ids are spread, has one id in this many."""

RANGE_IDS = 1 << 23
"""The number of ids in one range, if no id is repeated."""

_LISTS = ("include_offsets", "include_values", "exclude_offsets", "exclude_values")


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The inputs that all tasks of a build share, on any machine."""

    spec: BuildSpec
    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    scratch: Path
    run_rows: int

    def reading(self) -> AdsReading:
        """Return the reader of rows for the whole build, from files that every task sees."""
        names = {name: IdMap.read(path) for name, path in self.spec.id_maps.items()}
        sids = None if self.spec.sids is None else open_item_sids(self.scratch)
        rows = self.spec.batch_rows
        return AdsReading(self.schema, self.vocab_sizes, names, sids, rows)


@dataclass(frozen=True, slots=True)
class CollectTask:
    inputs: TaskInputs
    file_at: int  # the file's place among the table's files
    file: AdsFile
    reported_as: str  # the file's name in rejects

    def __str__(self) -> str:
        return f"reading {self.reported_as}"


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    file_at: int

    def token_ads(self) -> npt.NDArray[np.int64]:
        """Return the number of built ads by first token.   [first tokens]"""
        return _load(self.path, "token_ads")


@dataclass(frozen=True, slots=True)
class CollectedFile:
    rows: int
    runs: tuple[Run, ...]
    rejects: tuple[tuple[Reject, ...], ...]  # batch by batch
    stated: frozenset[str]  # columns in which some row has a rule, or an entity
    peak_memory_bytes: int


def collect_file(task: CollectTask) -> CollectedFile:
    """Stops early if the file alone has more rejects than the build allows."""
    inputs, source = task.inputs, AdsSource((task.file,), (), None, None)
    reader = BatchReader(source, inputs.reading())
    folder = Path(mkdtemp(prefix=f"file-{task.file_at:06d}-", dir=inputs.scratch))
    runs: list[Run] = []
    rejects: list[tuple[Reject, ...]] = []
    batches = iter(reader)
    batch = next(batches, None)
    rows = 0
    while batch is not None and sum(map(len, rejects)) <= inputs.spec.max_rejects:
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        first_row = rows
        with closing(RuleTable(inputs.schema, inputs.spec.threads)) as table:
            while batch is not None and _has_room(rows - first_row, inputs.run_rows, batch):
                rule_of = np.where(batch.refused, np.int32(REFUSED), np.int32(0))
                faults = table.add(batch.rules, rule_of)
                fixed = (batch.ad_ids, batch.tokens, batch.weights, rule_of)
                columns.append((*fixed, *batch.entity_ids))
                rejects += [
                    tuple(replace(reject, file=task.reported_as) for reject in found)
                    for found in (batch.rejects, rule_rejects(batch, inputs.schema, faults))
                ]
                rows += len(rule_of)
                batch = next(batches, None)
            rules = table.take()
        ad_ids, tokens, weights, rule_of, *entity_ids = map(
            np.concatenate, zip(*columns, strict=True)
        )
        del columns
        # Decoding is a batch ahead and may add values meanwhile: those of this run are all there.
        values = tuple(codes.strings() for codes in reader.set_codes)
        collected = CollectedAds(ad_ids, tokens, weights, rule_of, tuple(entity_ids), rules, values)
        runs.append(Run(folder / f"run-{len(runs):06d}", task.file_at))
        _write_run(runs[-1].path, inputs, collected, first_row)
    stated = frozenset(reader.stated)
    return CollectedFile(rows, tuple(runs), tuple(rejects), stated, peak_memory())


def _has_room(rows: int, run_rows: int, batch: AdsBatch) -> bool:
    return rows == 0 or rows + len(batch.ad_ids) <= run_rows


def _write_run(path: Path, inputs: TaskInputs, ads: CollectedAds, first_row: int) -> None:
    known = np.flatnonzero(ads.ad_ids >= 0)
    order = known[order_by_id(ads.ad_ids[known], inputs.spec.threads)]
    kept = np.flatnonzero(ads.rule_of != REFUSED)
    kept = kept[np.argsort(ads.tokens[kept, 0], kind="stable")]
    used = first_use(ads.rule_of[kept], ads.rules.num_rules)
    rules, set_values = renumber_rules(ads.rules, ads.set_values, used.old_of)
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": ads.ad_ids[order],
        "id_sample": ads.ad_ids[order[::SAMPLE_STEP]],
        "id_rows": first_row + order,
        "id_refused": ads.rule_of[order] == REFUSED,
        "token_ads": np.bincount(ads.tokens[kept, 0], minlength=inputs.vocab_sizes[0]),
        "ad_ids": ads.ad_ids[kept],
        "tokens": ads.tokens[kept],
        "weights": ads.weights[kept],
        "rule": used.new_of[ads.rule_of[kept]],
        "bitmask": rules.bitmask,
        "bitmask_table": rules.bitmask_table,
        "set_rules": rules.set_rules,
    }
    arrays |= {f"entity_ids{e}": ids[kept] for e, ids in enumerate(ads.entity_ids)}
    for s, (of_set, values) in enumerate(zip(rules.sets, set_values, strict=True)):
        arrays |= {f"{name}{s}": getattr(of_set, name) for name in _LISTS}
        arrays |= {f"value_offsets{s}": values.offsets, f"value_utf8{s}": values.utf8}
    path.mkdir()
    with open_root(path) as folder:
        for name, array in arrays.items():
            write_array(f"{name}.npy", array, folder, synced=False)


def load_ads(
    run: Run,
    first_token: int,
    end_token: int,
    repeated: npt.NDArray[np.int64],
    schema: TargetingSchema,
) -> CollectedAds:
    """Return the ads of first tokens first_token .. end_token - 1, and only the rules they use.

    Ads with repeated ids are left out.
    """

    def load_all(*names: str) -> Iterator[npt.NDArray[Any]]:
        return (_load(run.path, name) for name in names)

    sets, entities = len(schema.sets), range(len(schema.entities))
    token_ads = run.token_ads()
    begin, end = int(token_ads[:first_token].sum()), int(token_ads[:end_token].sum())
    names = ("ad_ids", "tokens", "weights", "rule", *(f"entity_ids{e}" for e in entities))
    columns = [_load(run.path, name, begin, end) for name in names]
    if len(repeated):
        kept = ~np.isin(columns[0], repeated)
        columns = [column[kept] for column in columns]
    ad_ids, tokens, weights, rule, *entity_ids = columns
    of_sets = tuple(SetRules(*load_all(*(f"{name}{s}" for name in _LISTS))) for s in range(sets))
    bitmask, table, set_rules = load_all("bitmask", "bitmask_table", "set_rules")
    rules = TargetingRules(bitmask, table, set_rules, of_sets)
    values = [InternedValues(*load_all(f"value_offsets{s}", f"value_utf8{s}")) for s in range(sets)]
    used = first_use(rule, rules.num_rules)
    rules, set_values = renumber_rules(rules, [each.strings for each in values], used.old_of)
    strings = tuple(interned.strings for interned in set_values)
    rule_of = used.new_of[rule]
    return CollectedAds(ad_ids, tokens, weights, rule_of, tuple(entity_ids), rules, strings)


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids from `low` to `high - 1`, or to the last id if `high` is None."""

    runs: tuple[Run, ...]
    low: int
    high: int | None

    def __str__(self) -> str:
        return f"looking for repeated ids from {self.low} on"


@dataclass(frozen=True, slots=True)
class RepeatedIds:
    """The ads that only their repeated id refuses.   all arrays int64 [repeated ads]"""

    ad_ids: npt.NDArray[np.int64]
    file_at: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]  # within the file
    peak_memory_bytes: int


def id_ranges(runs: Sequence[Run]) -> list[IdRange]:
    sample = np.sort(np.concatenate([_load(run.path, "id_sample") for run in runs]))
    cuts = np.unique(sample[:: max(1, RANGE_IDS // SAMPLE_STEP)][1:]).tolist()
    ranges = zip([0, *cuts], [*cuts, None], strict=True)
    return [IdRange(tuple(runs), low, high) for low, high in ranges]


def find_repeated(task: IdRange) -> RepeatedIds:
    parts = []
    for run in task.runs:
        ids = _open(run.path, "ids")
        begin = int(np.searchsorted(ids, task.low))
        end = len(ids) if task.high is None else int(np.searchsorted(ids, task.high))
        parts.append((run, begin, np.array(ids[begin:end])))
    in_order = np.sort(np.concatenate([ids for *_, ids in parts]))
    again = in_order[1:][in_order[1:] == in_order[:-1]]
    found = []
    for run, begin, ids in parts:
        places = np.flatnonzero(np.isin(ids, again))
        places = places[~_open(run.path, "id_refused")[begin + places]]
        rows = np.array(_open(run.path, "id_rows")[begin + places])
        found.append((ids[places], np.full(len(places), run.file_at), rows))
    ad_ids, file_at, rows = map(np.concatenate, zip(*found, strict=True))
    return RepeatedIds(ad_ids, file_at, rows, peak_memory())


def _open(path: Path, name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return array


def _load(path: Path, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
    """Return a copy, so that the rest of the file does not stay in memory."""
    return np.array(_open(path, name)[begin:end])
