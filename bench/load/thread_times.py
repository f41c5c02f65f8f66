"""What the threads of a server's processes spend on processors: it tells which is the limit.

Linux's own account, in /proc. A thread that nobody named has its process's name; numbers tell such
threads apart, in the order in which they were started.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["ThreadTimes", "ThreadWatch"]

_SAMPLE_SECONDS = 0.25
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
# Of `stat`, after the name, which may hold blanks and brackets.
_GROUP, _USER, _SYSTEM = 2, 11, 12


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds on a processor so far, by (process, thread); and when they were read."""

    seconds: Mapping[tuple[int, int], float]
    names: Mapping[tuple[int, int], str]
    at: float

    @staticmethod
    def of_group(group: int) -> "ThreadTimes":
        """All processes of a process group, such as a server and those that it started."""
        seconds: dict[tuple[int, int], float] = {}
        names: dict[tuple[int, int], str] = {}
        for folder in _PROC.glob("[0-9]*"):
            for task in _tasks(folder, group):
                try:
                    fields, name = _stat(task), (task / "comm").read_text(encoding="utf-8")
                except OSError:  # it has ended since
                    continue
                key = (int(folder.name), int(task.name))
                seconds[key] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
                names[key] = name.strip()
        return ThreadTimes(seconds, names, time.time())

    def busiest(self, before: "ThreadTimes", least: float = 0.02) -> dict[str, float]:
        """Seconds per second since `before`, by thread, of those with at least so many."""
        elapsed = self.at - before.at
        shares = {
            name: (self.seconds[key] - before.seconds.get(key, 0.0)) / elapsed
            for key, name in self._told_apart().items()
        }
        busy = sorted(shares.items(), key=lambda each: -each[1])
        return {name: round(share, 3) for name, share in busy if share >= least}

    def _told_apart(self) -> dict[tuple[int, int], str]:
        """Such as "1 main", "1 cuda-EvtHandlr", "2 python3 #5": the process counts from 1."""
        places = {pid: place for place, pid in enumerate(sorted({p for p, _ in self.names}), 1)}
        count = Counter((pid, name) for (pid, _), name in self.names.items())
        met: Counter[tuple[int, str]] = Counter()
        told = {}
        for pid, tid in sorted(self.names):
            name = self.names[pid, tid]
            met[pid, name] += 1
            number = f" #{met[pid, name]}" if count[pid, name] > 1 else ""
            told[pid, tid] = f"{places[pid]} {'main' if pid == tid else name + number}"
        return told


class ThreadWatch:
    """Inside `with`, reads them again and again, so that a part of the time can be told of."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._read: list[ThreadTimes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def busiest(self, begin: float, end: float) -> dict[str, float]:
        """Between two moments of `time.time`; empty if it was not read twice between them."""
        inside = [each for each in self._read if begin <= each.at <= end]
        return inside[-1].busiest(inside[0]) if len(inside) > 1 else {}

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._read.append(ThreadTimes.of_group(self._group))


def _tasks(process: Path, group: int) -> list[Path]:
    try:
        return list((process / "task").iterdir()) if int(_stat(process)[_GROUP]) == group else []
    except OSError:
        return []


def _stat(folder: Path) -> list[str]:
    """The fields after the name."""
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
