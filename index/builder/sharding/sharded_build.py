"""A build in shards by first token: the largest shard bounds memory, and the bytes are the same.

Three rounds of tasks that depend on files alone, and a merge: files of ads become runs, ids are
searched for repeated ones, ranges of first tokens become shards. The tasks run here or on other
machines; their results come back in the tasks' order.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.builder.build import BuildPlan, BuildSpec, plan_build
from grace.index.builder.collect import repeated_reject
from grace.index.builder.report import BuildReport, Notify, silent
from grace.index.builder.sharding.merge import merge_shards
from grace.index.builder.sharding.runs import (
    CollectTask,
    Run,
    TaskInputs,
    collect_file,
    find_repeated,
    id_ranges,
)
from grace.index.builder.sharding.scratch import scratch_faults, scratch_folder
from grace.index.builder.sharding.shard import ShardTask, build_shard, first_token_ranges
from grace.index.progress import Progress
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.reader import map_snapshot
from grace.index.tables.addresses import absolute
from grace.index.tables.item_numbers import IdMap

RUN_ROWS = 1 << 20
"""Ads that are read before they are written out as a run."""


class Measured(Protocol):
    @property
    def peak_memory_bytes(self) -> int: ...


Task = TypeVar("Task")
Result = TypeVar("Result")
MeasuredResult = TypeVar("MeasuredResult", bound=Measured)


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


@dataclass(frozen=True, slots=True)
class Sharding:
    shards: int
    run: RunTasks = one_by_one
    scratch: Path | None = None  # None: the snapshot root; every task must reach it by this path
    run_rows: int = RUN_ROWS


def build_in_shards(
    spec: BuildSpec, sharding: Sharding, progress: Progress, notify: Notify = silent
) -> BuildReport:
    plan = plan_build(spec, progress, notify)
    if sharding.shards < 1:
        raise InputError(f"--shards {sharding.shards}: give 1 or more")
    with scratch_folder(sharding.scratch or spec.root) as scratch:
        reading = plan.reading()
        if reading.sids is not None:
            with scratch_faults("writing the SIDs", scratch):
                reading.sids.save(scratch)
        del reading
        maps = {name: path.absolute() for name, path in spec.id_maps.items()}
        spec = replace(spec, id_map=maps.pop("ad_id", None), entity_ids=maps)
        inputs = TaskInputs(spec, plan.schema, plan.vocab_sizes, scratch, sharding.run_rows)
        return _ShardedBuild(plan, sharding, inputs).run()


@dataclass(slots=True)
class _ShardedBuild:
    plan: BuildPlan
    sharding: Sharding
    inputs: TaskInputs
    peak: int = 0  # bytes, of the processes that ran tasks
    stated: frozenset[str] = frozenset()  # columns in which some row has a rule, or an entity

    def run(self) -> BuildReport:
        plan = self.plan
        runs = self._collect()
        repeated, repeated_ads = self._refuse_repeated(runs)
        token_ads: npt.NDArray[np.int64] = np.stack([run.token_ads() for run in runs]).sum(axis=0)
        plan.require_ads(int(token_ads.sum()) - repeated_ads)
        plan.require_stated(self.stated)
        facts = plan.final_facts(self.stated)
        ranges = first_token_ranges(token_ads, self.sharding.shards)
        roots = self._build_shards(runs, ranges, repeated, facts)
        for run in runs:
            rmtree(run.path)
        return plan.finish(self._merge(roots, facts), len(ranges), self.peak)

    def _results(
        self, function: Callable[[Task], MeasuredResult], tasks: Sequence[Task]
    ) -> Generator[MeasuredResult, None, None]:
        """Run the tasks; a fault of the scratch's disk is reported with its task."""
        with closing(self.sharding.run(function, tasks)) as results:
            for task in tasks:
                with scratch_faults(str(task), self.inputs.scratch):
                    result = next(results)
                self.peak = max(self.peak, result.peak_memory_bytes)
                yield result

    def _collect(self) -> list[Run]:
        plan = self.plan
        tasks = [
            CollectTask(
                self.inputs,
                at,
                replace(file, table=replace(file.table, address=absolute(file.address))),
                reported_as=file.address,
            )
            for at, file in enumerate(plan.source.files)
        ]
        runs: list[Run] = []
        rows = 0
        with (
            plan.steps.run("read ads", plan.source.rows) as advance,
            closing(self._results(collect_file, tasks)) as results,
        ):
            for collected in results:
                for rejects in collected.rejects:
                    plan.log.extend(rejects)
                runs.extend(collected.runs)
                self.stated |= collected.stated
                rows += collected.rows
                advance(rows)
        return runs

    def _refuse_repeated(self, runs: Sequence[Run]) -> tuple[npt.NDArray[np.int64], int]:
        """Return the ids of which no ad is built, and how many ads only their id refuses."""
        tasks = id_ranges(runs)
        found = []
        with (
            self.plan.steps.run("compare ids", len(tasks)) as advance,
            closing(self._results(find_repeated, tasks)) as results,
        ):
            for done, result in enumerate(results, 1):
                found.append((result.ad_ids, result.file_at, result.rows))
                advance(done)
        ids, files, rows = map(np.concatenate, zip(*found, strict=True))
        addresses = [file.address for file in self.plan.source.files]
        given = self._given_ids(ids)
        self.plan.log.extend(
            [
                repeated_reject(addresses[files[i]], int(rows[i]), given[i])
                for i in np.lexsort([rows, files]).tolist()
            ]
        )
        return np.unique(ids), len(ids)

    def _given_ids(self, ad_ids: npt.NDArray[np.int64]) -> list[int] | list[str]:
        """Return the ids of these ads as the table has them."""
        id_map = self.inputs.spec.id_map
        if id_map is None or len(ad_ids) == 0:
            numbers: list[int] = ad_ids.tolist()
            return numbers
        return IdMap.read(id_map).names(ad_ids)

    def _build_shards(
        self,
        runs: Sequence[Run],
        ranges: Sequence[tuple[int, int]],
        repeated: npt.NDArray[np.int64],
        facts: SnapshotFacts,
    ) -> list[Path]:
        """Return the roots of the shards that have ads."""
        plan = self.plan
        facts = replace(facts, version=1)
        tasks = [ShardTask(self.inputs, facts, tuple(runs), *tokens, repeated) for tokens in ranges]
        roots: list[Path] = []
        with (
            plan.steps.run("build shards", len(tasks)) as advance,
            closing(self._results(build_shard, tasks)) as results,
        ):
            for done, built in enumerate(results, 1):
                if built.root is not None:
                    roots.append(built.root)
                advance(done)
        return roots

    def _merge(self, roots: Sequence[Path], facts: SnapshotFacts) -> Snapshot:
        plan = self.plan
        with (
            plan.steps.run("merge shards", 2) as advance,
            scratch_faults("merging the shards", self.inputs.scratch),
        ):
            shards = [map_snapshot(root, version=1) for root in roots]
            return merge_shards(shards, facts, self.inputs.scratch, advance)
