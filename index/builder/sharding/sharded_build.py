"""A build in shards by first token: memory is bounded by the largest shard, bytes are the same.

Three rounds of tasks that depend on nothing but files, and a merge: files of ads become runs, ids
are looked through for repeated ones, first tokens become shards. Whoever runs the tasks, here or on
other machines, gives their results back in the tasks' order.
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
from grace.index.builder.build import (
    ENDED_REJECTS,
    BuildReport,
    BuildSpec,
    Progress,
    Steps,
    every_ad_refused,
    report_of,
    require_threads,
    sid_space_and_vocabulary,
    utc_now,
    version_of,
    write_and_publish,
)
from grace.index.builder.collect import repeated_reject
from grace.index.builder.kway import checked_k_way, require_static_ids
from grace.index.builder.rejects import RejectLog
from grace.index.builder.sharding.merge import merge_shards, open_shard
from grace.index.builder.sharding.repeated_ids import RepeatedIds, find_repeated, id_ranges
from grace.index.builder.sharding.runs import CollectTask, Run, collect_file
from grace.index.builder.sharding.scratch import scratch_faults, scratch_folder
from grace.index.builder.sharding.shard import ShardTask, build_shard, first_token_ranges
from grace.index.builder.source import AdsSource, open_ads
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import SnapshotFacts
from grace.index.storage.folder import OnWait
from grace.index.targeting.schema import TargetingSchema, load_schema

__all__ = ["RunTasks", "Sharding", "build_in_shards", "one_by_one"]

RUN_ROWS = 1 << 20
"""Ads that are read before they are written out as a run."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class RunTasks(Protocol):
    """Calls a function of this package with every task; results in the tasks' order.

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
    spec: BuildSpec, sharding: Sharding, progress: Progress, on_wait: OnWait | None = None
) -> BuildReport:
    """`on_wait` is told, in a sentence, if another process is writing in the root."""
    require_threads(spec)
    schema = load_schema(spec.targeting)
    source = open_ads(spec.ads, schema)
    if sharding.shards < 1:
        raise InputError(f"--shards {sharding.shards}: give 1 or more")
    sid_space, vocab_sizes = sid_space_and_vocabulary(spec, source)
    checked_k_way(spec.mode, spec.k_way, len(vocab_sizes))
    facts = SnapshotFacts(version_of(spec), "", sid_space, 0, spec.updates_watermark)
    log = RejectLog(spec.max_rejects, spec.reject_file or spec.root / ENDED_REJECTS)
    with scratch_folder(sharding.scratch or spec.root) as scratch:
        parts = _ShardedBuild(
            spec=spec,
            sharding=sharding,
            schema=schema,
            source=source,
            vocab_sizes=vocab_sizes,
            scratch=scratch,
            log=log,
            steps=Steps(progress),
            on_wait=on_wait,
        )
        return parts.run(facts)


@dataclass(slots=True)
class _ShardedBuild:
    spec: BuildSpec
    sharding: Sharding
    schema: TargetingSchema
    source: AdsSource
    vocab_sizes: tuple[int, ...]
    scratch: Path
    log: RejectLog
    steps: Steps
    on_wait: OnWait | None
    _peak: int = 0  # bytes, of the processes that ran tasks
    _shards: int = 0

    def run(self, facts: SnapshotFacts) -> BuildReport:
        """`facts` without their time and rejects."""
        runs = self._collect()
        repeated, repeated_ads = self._refuse_repeated(runs)
        token_ads: npt.NDArray[np.int64] = np.stack([run.token_ads for run in runs]).sum(axis=0)
        if token_ads.sum() == repeated_ads:
            raise every_ad_refused(self.spec, self.log)
        facts = replace(facts, created_at=utc_now(), rejects=len(self.log))
        roots = self._build_shards(runs, token_ads, repeated, facts)
        return self._merge_and_write(roots, facts)

    def _results(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Generator[Result, None, None]:
        """As RunTasks; what the scratch's disk refuses here is told with the task."""
        with closing(self.sharding.run(function, tasks)) as results:
            for task in tasks:
                with scratch_faults(str(task), self.scratch):
                    result = next(results)
                yield result

    def _collect(self) -> list[Run]:
        spec = self.spec
        tasks = [
            CollectTask(
                file_at=at,
                file=replace(file, path=file.path.absolute()),
                told_as=str(file.path),
                schema=self.schema,
                vocab_sizes=self.vocab_sizes,
                scratch=self.scratch,
                max_rejects=spec.max_rejects,
                threads=spec.threads,
                batch_rows=spec.batch_rows,
                run_rows=self.sharding.run_rows,
            )
            for at, file in enumerate(self.source.files)
        ]
        runs: list[Run] = []
        rows = 0
        with (
            self.steps.run("read ads", self.source.rows) as advance,
            closing(self._results(collect_file, tasks)) as results,
        ):
            for collected in results:
                for rejects in collected.rejects:
                    self.log.extend(rejects)
                runs.extend(collected.runs)
                rows += collected.rows
                self._peak = max(self._peak, collected.peak_memory_bytes)
                advance(rows)
        return runs

    def _refuse_repeated(self, runs: Sequence[Run]) -> tuple[npt.NDArray[np.int64], int]:
        """Ids of which no ad is built, and of how many ads that nothing else refuses."""
        tasks = id_ranges(runs)
        found: list[RepeatedIds] = []
        with (
            self.steps.run("compare ids", len(tasks)) as advance,
            closing(self._results(find_repeated, tasks)) as results,
        ):
            for done, result in enumerate(results, 1):
                found.append(result)
                self._peak = max(self._peak, result.peak_memory_bytes)
                advance(done)
        ids, files, rows = (
            np.concatenate([getattr(one, name) for one in found])
            for name in ("ad_ids", "file_at", "rows")
        )
        paths = [file.path for file in self.source.files]
        self.log.extend(
            [
                repeated_reject(paths[files[i]], int(rows[i]), int(ids[i]))
                for i in np.lexsort([rows, files]).tolist()
            ]
        )
        return np.unique(ids), len(ids)

    def _build_shards(
        self,
        runs: Sequence[Run],
        token_ads: npt.NDArray[np.int64],
        repeated: npt.NDArray[np.int64],
        facts: SnapshotFacts,
    ) -> list[Path]:
        tasks = [
            ShardTask(
                spec=replace(self.spec, targeting=self.spec.targeting.absolute()),
                schema=self.schema,
                facts=replace(facts, version=1),
                vocab_sizes=self.vocab_sizes,
                runs=tuple(
                    run.of_tokens(first, end) for run in runs if run.token_ads[first:end].any()
                ),
                first_token=first,
                end_token=end,
                repeated=repeated,
                scratch=self.scratch,
            )
            for first, end in first_token_ranges(token_ads, self.sharding.shards)
        ]
        self._shards = len(tasks)
        roots: list[Path] = []
        nodes = np.zeros(1 + len(self.vocab_sizes), np.int64)
        with (
            self.steps.run("build shards", len(tasks)) as advance,
            closing(self._results(build_shard, tasks)) as results,
        ):
            for done, built in enumerate(results, 1):
                if built.root is not None:
                    roots.append(built.root)
                    nodes += built.level_counts
                    require_static_ids(nodes.tolist(), self.spec.k_way)
                self._peak = max(self._peak, built.peak_memory_bytes)
                advance(done)
        for run in runs:
            rmtree(run.path)
        return roots

    def _merge_and_write(self, roots: Sequence[Path], facts: SnapshotFacts) -> BuildReport:
        spec = self.spec
        kinds = 0 if spec.mode is MatcherMode.CD else 1 + len(self.schema.sets)
        with (
            self.steps.run("merge shards", 2 + kinds) as advance,
            scratch_faults("merging the shards", self.scratch),
        ):
            shards = [open_shard(root) for root in roots]
            snapshot = merge_shards(shards, facts, self.scratch, advance)
        with self.steps.run("write", 1) as advance:
            path, rejects = write_and_publish(spec, snapshot, self.log, self.on_wait)
            advance(1)
        report = report_of(spec, self.source, snapshot, path, rejects, self.steps)
        peak = max(self._peak, report.peak_memory_bytes)
        return replace(report, shards=self._shards, peak_memory_bytes=peak)
