"""Processor time by thread of a server's processes, from Linux's /proc: it shows the bottleneck.

An unnamed thread has its process's name; a number in order of start distinguishes such threads.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from grace.bench.background import in_background

_SAMPLE_SECONDS = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_GROUP, _USER, _SYSTEM = 2, 11, 12  # places in `stat` after the name

Thread = tuple[int, int]
"""The ids of a process and of its thread."""


class ThreadTimes(NamedTuple):
    """The processor seconds that each thread has used, and its name, as read at time `at`."""

    seconds: Mapping[Thread, float]
    names: Mapping[Thread, str]
    at: float

    @staticmethod
    def of_group(group: int) -> "ThreadTimes":
        """Read all processes of a process group, such as a server and those that it started."""
        seconds, names = {}, {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                own = int(_stat(process)[_GROUP]) == group
                tasks = list((process / "task").iterdir()) if own else []
            except OSError:  # the process has ended
                continue
            for task in tasks:
                try:
                    fields, name = _stat(task), (task / "comm").read_text(encoding="utf-8")
                except OSError:  # the thread has ended
                    continue
                key = int(process.name), int(task.name)
                seconds[key] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
                names[key] = name.strip()
        return ThreadTimes(seconds, names, time.time())

    def busiest(self, before: "ThreadTimes", least: float = 0.02) -> dict[str, float]:
        """Return seconds per second since `before`, by thread, where at least `least`."""
        elapsed = self.at - before.at
        shares = {
            name: (self.seconds[key] - before.seconds.get(key, 0.0)) / elapsed
            for key, name in self._labels().items()
        }
        busy = sorted(shares.items(), key=lambda each: -each[1])
        return {name: round(share, 3) for name, share in busy if share >= least}

    def _labels(self) -> dict[Thread, str]:
        """Such as "1 main", "1 cuda-EvtHandlr", "2 python3 #5": processes are numbered from 1."""
        places = {pid: place for place, pid in enumerate(sorted({p for p, _ in self.names}), 1)}
        count = Counter((pid, name) for (pid, _), name in self.names.items())
        met: Counter[tuple[int, str]] = Counter()
        labels = {}
        for pid, tid in sorted(self.names):
            name = self.names[pid, tid]
            met[pid, name] += 1
            number = f" #{met[pid, name]}" if count[pid, name] > 1 else ""
            labels[pid, tid] = f"{places[pid]} {'main' if pid == tid else name + number}"
        return labels


ThreadWatch: TypeAlias = Callable[[float, float], dict[str, float]]
"""Returns the shares between two moments of `time.time`; nothing without two samples."""


@contextmanager
def watched_threads(group: int) -> Iterator[ThreadWatch]:
    """Sample a process group's times inside `with`, so that a part of the time can be shown."""
    samples: list[ThreadTimes] = []

    def busiest(begin: float, end: float) -> dict[str, float]:
        inside = [sample for sample in samples if begin <= sample.at <= end]
        return inside[-1].busiest(inside[0]) if len(inside) > 1 else {}

    with in_background(lambda: samples.append(ThreadTimes.of_group(group)), _SAMPLE_SECONDS):
        yield busiest


def _stat(folder: Path) -> list[str]:
    """The fields after the name, which may hold blanks and brackets."""
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
