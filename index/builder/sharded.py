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

from configs.errors import InputError
from index.builder.build import (
    ENDED_REJECTS,
    BuildReport,
    BuildSpec,
    Progress,
    Steps,
    report_of,
    sid_space_and_vocabulary,
    utc_now,
    version_of,
)
from index.builder.collect import repeated_reject
from index.builder.kway import checked_k_way
from index.builder.merge import merge_shards, open_shard
from index.builder.rejects import RejectLog
from index.builder.repeated import RepeatedIds, find_repeated, id_ranges
from index.builder.runs import CollectTask, Run, collect_file
from index.builder.scratch import scratch_folder
from index.builder.shards import ShardTask, build_shard, first_token_ranges
from index.builder.source import AdsSource, open_ads
from index.matchers import MatcherMode
from index.schema import TargetingSchema, load_schema
from index.snapshot import SnapshotFacts
from index.storage import publish, write_snapshot

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


def build_in_shards(spec: BuildSpec, sharding: Sharding, progress: Progress) -> BuildReport:
    schema = load_schema(spec.targeting)
    source = open_ads(spec.ads, schema)
    if sharding.shards < 1:
        raise InputError(f"--shards {sharding.shards}: give 1 or more")
    sid_space, vocab_sizes = sid_space_and_vocabulary(spec, source)
    checked_k_way(spec.mode, spec.k_way, len(vocab_sizes))
    facts = SnapshotFacts(version_of(spec), "", sid_space, 0, spec.updates_watermark)
    log = RejectLog(spec.max_rejects, spec.reject_file or spec.root / ENDED_REJECTS)
    with scratch_folder(sharding.scratch or spec.root) as scratch:
        steps = Steps(progress)
        parts = _ShardedBuild(spec, sharding, schema, source, vocab_sizes, scratch, log, steps)
        return parts.run(facts)


@dataclass(slots=True)
class _ShardedBuild:
    _spec: BuildSpec
    _sharding: Sharding
    _schema: TargetingSchema
    _source: AdsSource
    _vocab_sizes: tuple[int, ...]
    _scratch: Path
    _log: RejectLog
    _steps: Steps
    _peak: int = 0  # bytes, of the processes that ran tasks

    def run(self, facts: SnapshotFacts) -> BuildReport:
        """`facts` without their time and rejects."""
        runs = self._collect()
        repeated, repeated_ads = self._refuse_repeated(runs)
        token_ads: npt.NDArray[np.int64] = np.stack([run.token_ads for run in runs]).sum(axis=0)
        if token_ads.sum() == repeated_ads:
            listed = self._log.write(self._spec.reject_file or self._spec.root / ENDED_REJECTS)
            raise InputError(
                f"all {len(self._log)} ads were refused, see {listed}; nothing to build"
            )
        facts = replace(facts, created_at=utc_now(), rejects=len(self._log))
        roots = self._build_shards(runs, token_ads, repeated, facts)
        return self._merge_and_write(roots, facts)

    def _collect(self) -> list[Run]:
        spec = self._spec
        tasks = [
            CollectTask(
                at,
                replace(file, path=file.path.absolute()),
                str(file.path),
                self._schema,
                self._vocab_sizes,
                self._scratch,
                spec.max_rejects,
                spec.threads,
                spec.batch_rows,
                self._sharding.run_rows,
            )
            for at, file in enumerate(self._source.files)
        ]
        runs: list[Run] = []
        rows = 0
        with (
            self._steps.run("read ads", self._source.rows) as advance,
            closing(self._sharding.run(collect_file, tasks)) as results,
        ):
            for collected in results:
                for rejects in collected.rejects:
                    self._log.extend(rejects)
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
            self._steps.run("compare ids", len(tasks)) as advance,
            closing(self._sharding.run(find_repeated, tasks)) as results,
        ):
            for done, result in enumerate(results, 1):
                found.append(result)
                self._peak = max(self._peak, result.peak_memory_bytes)
                advance(done)
        ids, files, rows = (
            np.concatenate([getattr(one, name) for one in found])
            for name in ("ad_ids", "file_at", "rows")
        )
        paths = [file.path for file in self._source.files]
        self._log.extend(
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
                replace(self._spec, targeting=self._spec.targeting.absolute()),
                self._schema,
                replace(facts, version=1),
                self._vocab_sizes,
                tuple(run.of_tokens(first, end) for run in runs if run.token_ads[first:end].any()),
                first,
                end,
                repeated,
                self._scratch,
            )
            for first, end in first_token_ranges(token_ads, self._sharding.shards)
        ]
        roots: list[Path] = []
        with (
            self._steps.run("build shards", len(tasks)) as advance,
            closing(self._sharding.run(build_shard, tasks)) as results,
        ):
            for done, built in enumerate(results, 1):
                if built.root is not None:
                    roots.append(built.root)
                self._peak = max(self._peak, built.peak_memory_bytes)
                advance(done)
        for run in runs:
            rmtree(run.path)
        return roots

    def _merge_and_write(self, roots: Sequence[Path], facts: SnapshotFacts) -> BuildReport:
        spec = self._spec
        kinds = 0 if spec.mode is MatcherMode.CD else 1 + len(self._schema.sets)
        with self._steps.run("merge shards", 2 + kinds) as advance:
            shards = [open_shard(root) for root in roots]
            snapshot = merge_shards(shards, facts, self._scratch, advance)
        with self._steps.run("write", 1) as advance:
            path = write_snapshot(snapshot, spec.root, or_next=spec.version is None)
            rejects = self._log.write(spec.reject_file or spec.root / f"{path.name}.rejects.jsonl")
            if spec.publish:
                # Builds may overlap: one that began earlier must not undo a later publication.
                publish(spec.root, int(path.name), only_forward=True)
            advance(1)
        report = report_of(spec, self._source, snapshot, path, rejects, self._steps)
        return replace(report, peak_memory_bytes=max(self._peak, report.peak_memory_bytes))
