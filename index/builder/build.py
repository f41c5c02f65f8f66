"""The build, top to bottom."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grace.configs.errors import InputError
from grace.configs.machine import available_cores
from grace.index.builder.arrange import Arranged, arrange
from grace.index.builder.batches import BATCH_ROWS, BatchReader
from grace.index.builder.collect import collect_ads
from grace.index.builder.kway import checked_k_way, k_way_matchers
from grace.index.builder.peak import peak_memory
from grace.index.builder.rejects import RejectLog
from grace.index.builder.source import AdsSource, open_ads
from grace.index.builder.unions import union_matchers
from grace.index.matchers.modes import KWay, MatcherMode
from grace.index.matchers.node_matchers import Matchers
from grace.index.snapshot import (
    MAX_SID_LENGTH,
    MAX_VERSION,
    MAX_VOCAB_SIZE,
    Snapshot,
    SnapshotFacts,
    is_sid_space,
)
from grace.index.storage import current_version, next_version, publish, versions, write_snapshot
from grace.index.storage.folder import OnWait
from grace.index.targeting.schema import TargetingSchema, load_schema

__all__ = ["BuildReport", "BuildSpec", "Progress", "build"]

Progress = Callable[[str, int, int], None]
"""Told the step's name, how much of it is done, and how much there is."""

ENDED_REJECTS = "ended.rejects.jsonl"
"""In the root, the rejects of a build that ended without a version."""

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class BuildSpec:
    ads: tuple[Path, ...]  # Parquet files or folders of them
    targeting: Path
    root: Path
    mode: MatcherMode = MatcherMode.UNION
    k_way: KWay | None = None  # partitions of mode `static` or `dynamic`; the latter has a default
    sid_space: str | None = None  # None: what the files' metadata says
    vocab_sizes: tuple[int, ...] | None = None  # likewise
    version: int | None = None  # None: the next one
    updates_watermark: int = 0
    max_rejects: int = 0
    reject_file: Path | None = None  # None: <root>/<version>.rejects.jsonl, or ENDED_REJECTS
    publish: bool = True
    threads: int = field(default_factory=available_cores)
    batch_rows: int = BATCH_ROWS


@dataclass(frozen=True, slots=True)
class BuildReport:
    version: int
    path: Path
    published: bool
    mode: MatcherMode
    sid_space: str
    ads: int
    sids: int
    rules: int
    rejects: int
    reject_file: Path | None
    files: int  # of the ads table
    rows: int
    ignored_columns: tuple[str, ...]
    step_seconds: dict[str, float]
    peak_memory_bytes: int
    shards: int | None = None  # of a build in shards: so many were built

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "path": str(self.path),
            "published": self.published,
            "mode": self.mode.value,
            "sid_space": self.sid_space,
            "ads": self.ads,
            "sids": self.sids,
            "rules": self.rules,
            "rejects": self.rejects,
            "reject_file": None if self.reject_file is None else str(self.reject_file),
            "files": self.files,
            "rows": self.rows,
            "ignored_columns": list(self.ignored_columns),
            "shards": self.shards,
            "step_seconds": {name: round(s, 3) for name, s in self.step_seconds.items()},
            "seconds": round(sum(self.step_seconds.values()), 3),
            "peak_memory_bytes": self.peak_memory_bytes,
        }


def build(spec: BuildSpec, progress: Progress, on_wait: OnWait | None = None) -> BuildReport:
    """`on_wait` is told, in a sentence, if another process is writing in the root."""
    require_threads(spec)
    schema = load_schema(spec.targeting)
    source = open_ads(spec.ads, schema)
    sid_space, vocab_sizes = sid_space_and_vocabulary(spec, source)
    checked_k_way(spec.mode, spec.k_way, len(vocab_sizes))
    version = version_of(spec)
    log = RejectLog(spec.max_rejects, spec.reject_file or spec.root / ENDED_REJECTS)
    steps = Steps(progress)
    with steps.run("read ads", source.rows) as advance:
        reader = BatchReader(source, schema, vocab_sizes, spec.batch_rows)
        collected = collect_ads(source, schema, reader, log, spec.threads, advance)
    if len(collected.ad_ids) == 0:
        raise every_ad_refused(spec, log)
    with steps.run("arrange", 1) as advance:
        arranged = arrange(collected, vocab_sizes, spec.threads)
        del collected
        advance(1)
    matchers = None
    if spec.mode is not MatcherMode.CD:
        with steps.run("join matchers", 1 + len(schema.sets)) as advance:
            matchers = matchers_of(arranged, schema, spec, advance)
    facts = SnapshotFacts(version, utc_now(), sid_space, len(log), spec.updates_watermark)
    snapshot = Snapshot(
        facts,
        schema,
        arranged.trie,
        spec.mode,
        matchers,
        arranged.ads,
        arranged.rules,
        arranged.set_values,
    )
    with steps.run("write", 1) as advance:
        path, rejects = write_and_publish(spec, snapshot, log, on_wait)
        advance(1)
    return report_of(spec, source, snapshot, path, rejects, steps)


def every_ad_refused(spec: BuildSpec, log: RejectLog) -> InputError:
    listed = log.write(spec.reject_file or spec.root / ENDED_REJECTS)
    return InputError(f"all {len(log)} ads were refused, see {listed}; nothing to build")


def write_and_publish(
    spec: BuildSpec, snapshot: Snapshot, log: RejectLog, on_wait: OnWait | None
) -> tuple[Path, Path | None]:
    """The version's folder, and the list of its rejects, if it has any."""
    path = write_snapshot(snapshot, spec.root, or_next=spec.version is None, on_wait=on_wait)
    ended = spec.root / ENDED_REJECTS
    ended.unlink(missing_ok=True)  # of an older table, which nobody has to mend any more
    rejects = log.write(spec.reject_file or spec.root / f"{path.name}.rejects.jsonl")
    if spec.publish:
        # Builds may overlap: one that began earlier must not undo a later one's publication.
        publish(spec.root, int(path.name), only_forward=True, on_wait=on_wait)
    return path, rejects


def matchers_of(
    arranged: Arranged, schema: TargetingSchema, spec: BuildSpec, progress: Callable[[int], None]
) -> Matchers | None:
    """`progress` is told how many of the 1 + sets matcher kinds are done."""
    if spec.mode is MatcherMode.CD:
        return None
    k_way = checked_k_way(spec.mode, spec.k_way, arranged.trie.sid_length)
    if k_way is None:
        return union_matchers(arranged, schema, spec.threads, progress)
    return k_way_matchers(arranged, schema, k_way, spec.threads, progress)


def report_of(
    spec: BuildSpec,
    source: AdsSource,
    snapshot: Snapshot,
    path: Path,
    reject_file: Path | None,
    steps: "Steps",
) -> BuildReport:
    return BuildReport(
        version=int(path.name),
        path=path.absolute(),
        published=current_version(spec.root) == int(path.name),
        mode=snapshot.mode,
        sid_space=snapshot.facts.sid_space,
        ads=snapshot.ads.num_ads,
        sids=snapshot.trie.num_leaves,
        rules=snapshot.rules.num_rules,
        rejects=snapshot.facts.rejects,
        reject_file=reject_file,
        files=len(source.files),
        rows=source.rows,
        ignored_columns=source.ignored_columns,
        step_seconds=steps.seconds,
        peak_memory_bytes=peak_memory(),
    )


def sid_space_and_vocabulary(spec: BuildSpec, source: AdsSource) -> tuple[str, tuple[int, ...]]:
    name = source.sid_space if spec.sid_space is None else spec.sid_space
    sizes = source.vocab_sizes if spec.vocab_sizes is None else spec.vocab_sizes
    if name is None or sizes is None:
        missing = [] if name is not None else ["--sid-space NAME (the model's)"]
        missing += [] if sizes is not None else ["--vocab-sizes 512,512,512,512 (one per token)"]
        raise InputError(
            f"pass {' and '.join(missing)}: the Parquet metadata has no grace.sid_space and "
            "grace.vocab_sizes to take them from"
        )
    if not is_sid_space(name):
        raise InputError(f"SID space {name[:80]!r}: use 1 to 255 printable characters")
    if not 1 <= len(sizes) <= MAX_SID_LENGTH:
        raise InputError(f"vocab sizes {sizes}: 1 to {MAX_SID_LENGTH} tokens per SID")
    for size in sizes:
        if not 1 <= size <= MAX_VOCAB_SIZE:
            raise InputError(f"vocab sizes {sizes}: each must be 1 to {MAX_VOCAB_SIZE}")
    return name, sizes


def require_threads(spec: BuildSpec) -> None:
    if not 1 <= spec.threads <= MAX_THREADS:
        raise InputError(f"--threads {spec.threads}: give 1 to {MAX_THREADS}, one per core")


def version_of(spec: BuildSpec) -> int:
    """Numbers are checked before hours of work, and again by the writer."""
    if not 0 <= spec.updates_watermark <= MAX_VERSION:
        raise InputError(f"updates watermark {spec.updates_watermark}: must be 0 to 2^64 - 1")
    if spec.version is None:
        return next_version(spec.root)
    if not 1 <= spec.version <= MAX_VERSION:
        raise InputError(f"version {spec.version}: must be 1 to 2^64 - 1")
    latest = max(versions(spec.root), default=0)
    if spec.version <= latest:
        raise InputError(
            f"{spec.root}: version {spec.version} is not above the latest, {latest}; "
            "leave --version out, or name a later one"
        )
    return spec.version


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Steps:
    """Times the steps and passes their progress on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def run(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        self._progress(name, 0, total)
        start = time.monotonic()
        yield lambda done: self._progress(name, done, total)
        self.seconds[name] = time.monotonic() - start
