"""What the processes of a server hold as time passes: memory, threads and descriptors.

A soak samples them. A process is flat if the line through the last three quarters of its memory
rises no faster than a limit, and it has no more threads and descriptors at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace.bench.markdown import table_of
from grace.bench.result_file import Row
from grace.configs.errors import CallError

SETTLED_SHARE = 0.25
"""The share of a run before the server has settled: buffers and pools grow with the first load."""

FLAT_MIB_PER_HOUR = 2.0
SETTLING_MIB = 6.0
"""How much the memory of a settled process may still rise: a slope, and what the allocator keeps
after a burst. With 16 processors, each thread's pool of memory takes minutes to fill. So a run of
minutes finds only a fast leak."""

CHANCE = {"threads": 2, "descriptors": 8}
"""How far their number may rise by chance, as connections come and go."""

_MIB = 1024.0  # of the kernel's kB


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process holds; the memory is resident."""

    memory_mib: float
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    processes: dict[str, Holdings]


def holdings_of(pid: int) -> Holdings:
    process = Path(f"/proc/{pid}")
    try:
        rollup = (process / "smaps_rollup").read_text().splitlines()[1:]
        memory = {name: int(value.split()[0]) for name, value in (x.split(":") for x in rollup)}
        return Holdings(
            memory_mib=round(memory["Rss"] / _MIB, 2),
            threads=len(list((process / "task").iterdir())),
            descriptors=len(list((process / "fd").iterdir())),
        )
    except (FileNotFoundError, ProcessLookupError):
        fault = f"process {pid} ended under load; its log has the cause"
        raise CallError("UNAVAILABLE", "", fault) from None


def memory_gb(pid: int, name: str) -> float:
    """Return a line of a process's status, such as VmHWM, in gigabytes of 10^9 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e9


def processes_of(server: int) -> dict[str, int]:
    """Return the ids of a server's process and of its relays, by name."""
    relays = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return {"server": server} | {f"relay {i}": int(pid) for i, pid in enumerate(relays, 1)}


def growth_rows(samples: Sequence[Sample]) -> list[Row]:
    """Return a row for each process and thing held: its values at begin and end, and the slope of
    the memory by least squares, once settled."""
    settled = [each for each in samples if each.seconds >= SETTLED_SHARE * samples[-1].seconds]
    return [
        _row(name, what, samples, settled)
        for name in samples[0].processes
        for what in ("memory_mib", "threads", "descriptors")
    ]


def _row(name: str, what: str, samples: Sequence[Sample], settled: Sequence[Sample]) -> Row:
    def value(sample: Sample) -> float:
        return float(getattr(sample.processes[name], what))

    slope, values = None, np.array(list(map(value, settled)))
    if what == "memory_mib":
        hours = np.array([each.seconds for each in settled]) / 3600
        slope, span = float(np.polyfit(hours, values, 1)[0]), float(hours[-1] - hours[0])
        flat = slope * span <= SETTLING_MIB + FLAT_MIB_PER_HOUR * span
    else:
        third = max(1, len(values) // 3)
        flat = float(np.median(values[-third:]) - np.median(values[:third])) <= CHANCE[what]
    return {
        "process": name,
        "what": what,
        "start": round(value(samples[0]), 2),
        "end": round(value(samples[-1]), 2),
        "slope_per_hour": None if slope is None else round(slope, 2),
        "flat": flat,
    }


def growth_table(rows: Sequence[Row]) -> str:
    return table_of(
        rows,
        ("process", "{process}"),
        ("holds", lambda x: "memory, MiB" if x["what"] == "memory_mib" else x["what"]),
        ("start", "{start:g}"),
        ("end", "{end:g}"),
        ("slope an hour", "{slope_per_hour:+.2f}"),
        ("flat", lambda x: "yes" if x["flat"] else "NO"),
    )
