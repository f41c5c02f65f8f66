"""The build, from top to bottom: read the ads, refuse repeated ids, arrange the rest, write.

The ordinary build is one shard, which stays in memory. Others take the same steps over files, as
tasks that may run on any machine: a run of ads or a range of first tokens at a time. So the largest
shard bounds their memory; only the merge holds the whole snapshot. The bytes are the same.
"""

from collections.abc import Callable, Generator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeAlias

import numpy as np

from grace.configs.arrays import Int64
from grace.index.builder.arrange import arrange
from grace.index.builder.collect import CollectedAds, Collector, find_repeated
from grace.index.builder.plan import BuildPlan, BuildSpec, plan_build
from grace.index.builder.report import BuildReport
from grace.index.builder.sharding.merge import merge_shards
from grace.index.builder.sharding.scratch import save_arrays, scratch_faults, scratch_folder
from grace.index.builder.sharding.tasks import (
    Result,
    Run,
    Task,
    TaskInputs,
    build_shard,
    collect_file,
    first_token_ranges,
)
from grace.index.progress import Notify, Progress
from grace.index.storage.reader import map_snapshot
from grace.index.tables.addresses import absolute

RUN_ROWS = 1 << 20
"""Ads that are read before they are written out as a run."""

RunTasks: TypeAlias = Callable[[Sequence[Task[Any]]], Generator[tuple[Any, int], None, None]]
"""Runs every task; yields what they return, in their order.

Closing the generator ends the tasks that run.
"""


def one_by_one(tasks: Sequence[Task[Result]]) -> Generator[tuple[Result, int], None, None]:
    yield from (task.run() for task in tasks)


@dataclass(frozen=True, slots=True)
class Sharding:
    shards: int
    run: RunTasks = one_by_one
    run_rows: int = RUN_ROWS


def build(
    spec: BuildSpec,
    progress: Progress,
    notify: Notify = lambda _: None,
    sharding: Sharding | None = None,
) -> BuildReport:
    plan = plan_build(spec, progress, notify)
    if sharding is None:
        ads, stated = collected(plan)
        facts = plan.facts_of(len(ads), stated)
        with plan.steps.run("arrange", 1):
            snapshot = arrange(ads, facts, plan.schema, plan.vocab_sizes, spec.threads)
        return plan.finish(snapshot)
    with scratch_folder(spec.root) as scratch:  # every task must reach it by this path
        return _ShardedBuild(plan, sharding, scratch).run()


def collected(plan: BuildPlan) -> tuple[CollectedAds, Set[str]]:
    """Return the ads that are not refused, and the columns in which some ad has a rule."""
    spec, source = plan.spec, plan.source
    reading = plan.reading()
    with plan.steps.run("read ads", source.rows) as advance:
        collector = Collector(
            source, reading, spec.threads, spec.max_rejects, source.rows, advance=advance
        )
        ((ads, ids),) = collector
        plan.log.extend(collector.rejects)
        return ads.without(plan.refuse_repeated(*find_repeated([ids]))), collector.stated


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
        runs, token_ads = self._collect(inputs)
        with plan.steps.run("compare ids", 1):
            ids, rows = find_repeated([run.sorted_ids() for run in runs])
        repeated = plan.refuse_repeated(ids, rows)
        left = int(token_ads.sum()) - len(rows)
        facts = plan.facts_of(left, self.stated)
        ranges = first_token_ranges(token_ads, self.sharding.shards)
        paths = [run.path for run in runs if run.has_ads]
        tasks = [
            Task(
                f"building the shard of first tokens {first} to {end - 1}",
                build_shard,
                (inputs, paths, (first, end), repeated),
            )
            for first, end in ranges
        ]
        roots = [root for root in self._run("build shards", tasks) if root is not None]
        for run in runs:
            rmtree(run.path)
        with plan.steps.run("merge shards", 1):
            shards = [map_snapshot(root, version=1) for root in roots]
            merged = merge_shards(shards, facts, plan.spec.threads)
        return plan.finish(merged, len(ranges), self.peak)

    def _inputs(self) -> TaskInputs:
        """Number ids and write the SIDs, for tasks that may be on any machine."""
        reading, spec = self.plan.reading(), self.plan.spec
        if reading.sids is not None:
            with scratch_faults("writing the SIDs", self.scratch):
                save_arrays(reading.sids, self.scratch)
        maps = {name: path.absolute() for name, path in spec.id_maps.items()}
        data = replace(spec.data, id_map=maps.pop("ad_id", None), entity_ids=maps)
        spec = replace(spec, data=data)
        plain = replace(reading, names={}, sids=None)
        return TaskInputs(spec, plain, self.scratch, self.sharding.run_rows)

    def _collect(self, inputs: TaskInputs) -> tuple[list[Run], Int64]:
        plan = self.plan
        first_rows = np.cumsum([0, *(file.rows for file in plan.source.files)]).tolist()
        files = [
            replace(file, table=replace(file.table, address=absolute(file.address)))
            for file in plan.source.files
        ]
        tasks = [
            Task(f"reading {given.address}", collect_file, (inputs, file, first_row))
            for given, file, first_row in zip(plan.source.files, files, first_rows, strict=False)
        ]
        runs: list[Run] = []
        token_ads = np.zeros(plan.vocab_sizes[0], np.int64)
        with closing(self._run("read ads", tasks)) as results:
            for file, collected in zip(plan.source.files, results, strict=True):
                # A task has read the file by another address.
                plan.log.extend(replace(each, file=file.address) for each in collected.rejects)
                runs.extend(collected.runs)
                token_ads += collected.token_ads
                self.stated |= collected.stated
        return runs, token_ads

    def _run(self, step: str, tasks: Sequence[Task[Result]]) -> Generator[Result, None, None]:
        """Run the tasks; a fault of the scratch's disk is reported with its task."""
        with (
            self.plan.steps.run(step, len(tasks)) as advance,
            closing(self.sharding.run(tasks)) as results,
        ):
            for done, task in enumerate(tasks, start=1):
                with scratch_faults(task.name, self.scratch):
                    result, peak = next(results)
                self.peak = max(self.peak, peak)
                advance(done)
                yield result
