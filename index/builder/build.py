"""The build, from top to bottom: read the ads, refuse repeated ids, arrange the rest, write.

The ordinary build is one shard, which stays in memory. Others take the same steps over files, as
tasks that may run on any machine: a run of ads, a range of ids or of first tokens at a time. So the
largest shard bounds their memory, and the bytes are the same.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import arrange
from grace.index.builder.collect import Collector, find_repeated
from grace.index.builder.plan import BuildPlan, BuildSpec, plan_build
from grace.index.builder.report import BuildReport, Notify, peak_memory, silent
from grace.index.builder.sharding.merge import merge_shards
from grace.index.builder.sharding.scratch import scratch_faults, scratch_folder
from grace.index.builder.sharding.tasks import (
    CollectTask,
    Run,
    ShardTask,
    TaskInputs,
    build_shard,
    collect_file,
    find_in_range,
    first_token_ranges,
    id_ranges,
)
from grace.index.progress import Progress
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.reader import map_snapshot
from grace.index.tables.addresses import absolute

RUN_ROWS = 1 << 20
"""Ads that are read before they are written out as a run."""


Task = TypeVar("Task")
Result = TypeVar("Result")


class RunTasks(Protocol):
    """Calls a function of this package with every task; yields results in the tasks' order.

    Closing the generator ends the tasks that run.
    """

    def __call__(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], /
    ) -> Generator[Result, None, None]: ...


def one_by_one(
    function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Generator[Result, None, None]:
    yield from map(function, tasks)


def _measured(function: Callable[[Task], Result], task: Task) -> tuple[Result, int]:
    return function(task), peak_memory()


@dataclass(frozen=True, slots=True)
class Sharding:
    shards: int
    run: RunTasks = one_by_one
    scratch: Path | None = None  # None: the snapshot root; every task must reach it by this path
    run_rows: int = RUN_ROWS


def build(
    spec: BuildSpec,
    progress: Progress,
    notify: Notify = silent,
    sharding: Sharding | None = None,
) -> BuildReport:
    plan = plan_build(spec, progress, notify)
    if sharding is None:
        return plan.finish(_in_memory(plan))
    with scratch_folder(sharding.scratch or spec.root) as scratch:
        return _ShardedBuild(plan, sharding, scratch).run()


def _in_memory(plan: BuildPlan) -> Snapshot:
    spec, source = plan.spec, plan.source
    reading = plan.reading()
    with plan.steps.run("read ads", source.rows) as advance:
        collector = Collector(
            source, reading, spec.threads, spec.max_rejects, source.rows, advance=advance
        )
        ((ads, ids),) = collector
        plan.log_all(collector.rejects)
        ads = ads.without(plan.refuse_repeated([find_repeated([ids])]))
    facts = plan.facts_of(len(ads), collector.stated)
    del reading, collector, ids
    with plan.steps.run("arrange", 1) as advance:
        snapshot = arrange(ads, facts, plan.schema, plan.vocab_sizes, spec.threads)
        advance(1)
    return snapshot


@dataclass(slots=True)
class _ShardedBuild:
    plan: BuildPlan
    sharding: Sharding
    scratch: Path
    peak: int = 0  # bytes, of the processes that ran tasks
    stated: frozenset[str] = frozenset()

    def run(self) -> BuildReport:
        plan = self.plan
        inputs = self._inputs()
        runs = self._collect(inputs)
        repeated = plan.refuse_repeated(self._all("compare ids", find_in_range, id_ranges(runs)))
        token_ads: npt.NDArray[np.int64] = sum(
            (run.token_ads(plan.vocab_sizes[0]) for run in runs),
            np.zeros(plan.vocab_sizes[0], np.int64),
        )
        facts = plan.facts_of(int(token_ads.sum()) - len(repeated), self.stated)
        ranges = first_token_ranges(token_ads, self.sharding.shards)
        with_ads = tuple(run.path for run in runs if run.has_ads)
        tasks = [
            ShardTask(inputs, with_ads, first, end, np.unique(repeated)) for first, end in ranges
        ]
        built = self._all("build shards", build_shard, tasks)
        for run in runs:
            rmtree(run.path)
        roots = [root for root in built if root is not None]
        return plan.finish(self._merge(roots, facts), len(ranges), self.peak)

    def _inputs(self) -> TaskInputs:
        """Number ids and write the SIDs, for tasks that may be on any machine."""
        reading, spec = self.plan.reading(), self.plan.spec
        if reading.sids is not None:
            with scratch_faults("writing the SIDs", self.scratch):
                reading.sids.save(self.scratch)
        maps = {name: path.absolute() for name, path in spec.id_maps.items()}
        spec = replace(spec, id_map=maps.pop("ad_id", None), entity_ids=maps)
        plan, rows = self.plan, self.sharding.run_rows
        return TaskInputs(spec, plan.schema, plan.vocab_sizes, self.scratch, rows)

    def _collect(self, inputs: TaskInputs) -> list[Run]:
        plan = self.plan
        first_rows = np.cumsum([0, *(file.rows for file in plan.source.files)]).tolist()
        tasks = [
            CollectTask(
                inputs,
                replace(file, table=replace(file.table, address=absolute(file.address))),
                first_row,
                reported_as=file.address,
            )
            for file, first_row in zip(plan.source.files, first_rows, strict=False)
        ]
        runs: list[Run] = []
        rows = 0
        with (
            plan.steps.run("read ads", plan.source.rows) as advance,
            closing(self._results(collect_file, tasks)) as results,
        ):
            for task, collected in zip(tasks, results, strict=True):
                plan.log_all(collected.rejects, task.reported_as)
                runs.extend(collected.runs)
                self.stated |= collected.stated
                rows += collected.rows
                advance(rows)
        return runs

    def _all(
        self, step: str, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> list[Result]:
        found = []
        with (
            self.plan.steps.run(step, len(tasks)) as advance,
            closing(self._results(function, tasks)) as results,
        ):
            for result in results:
                found.append(result)
                advance(len(found))
        return found

    def _results(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Generator[Result, None, None]:
        """Run the tasks; a fault of the scratch's disk is reported with its task."""
        with closing(self.sharding.run(partial(_measured, function), tasks)) as results:
            for task in tasks:
                with scratch_faults(str(task), self.scratch):
                    result, peak = next(results)
                self.peak = max(self.peak, peak)
                yield result

    def _merge(self, roots: Sequence[Path], facts: SnapshotFacts) -> Snapshot:
        with (
            self.plan.steps.run("merge shards", 1) as advance,
            scratch_faults("merging the shards", self.scratch),
        ):
            shards = [map_snapshot(root, version=1) for root in roots]
            merged = merge_shards(shards, facts, self.scratch / "merged")
            advance(1)
        return merged
