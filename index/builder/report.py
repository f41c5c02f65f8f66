"""The reports of a build: its progress while it runs, and its result."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grace.index.coverage import CoverageChange
from grace.index.progress import Advance, Progress


@dataclass(frozen=True, slots=True)
class BuildReport:
    version: int
    path: Path
    published: bool
    sid_space: str
    ads: int
    sids: int
    new_sids: int
    rules: int
    rejects: int
    reject_file: Path | None
    files: int  # of the ads table
    rows: int
    ignored_columns: tuple[str, ...]
    without: tuple[str, ...]  # entities of the schema to which no ad belongs
    shards: int | None  # how many were built; None for a build as a whole
    coverage: CoverageChange
    step_seconds: dict[str, float]
    peak_memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "path": str(self.path),
            "reject_file": None if self.reject_file is None else str(self.reject_file),
            "coverage": self.coverage.to_json(),
            "step_seconds": {name: round(s, 3) for name, s in self.step_seconds.items()},
            "seconds": round(sum(self.step_seconds.values()), 3),
        }


class Steps:
    """Times the steps of a build and passes their progress on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}
        self.new_sids = 0  # of ads that had none before the build

    @contextmanager
    def run(self, name: str, total: int) -> Iterator[Advance]:
        self._progress(name, 0, total)
        start = time.monotonic()
        yield lambda done: self._progress(name, done, total)
        self._progress(name, total, total)
        self.seconds[name] = time.monotonic() - start


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
