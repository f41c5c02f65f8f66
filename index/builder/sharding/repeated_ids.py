"""Repeated ad ids over all runs: every task looks at one range of ids, in all runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace.index.builder.peak import peak_memory
from grace.index.builder.sharding.runs import SAMPLE_STEP, Run

__all__ = ["IdRange", "RepeatedIds", "find_repeated", "id_ranges"]

RANGE_IDS = 1 << 23
"""Ids of a range, if none of them is repeated."""


@dataclass(frozen=True, slots=True)
class RunIds:
    path: Path
    file_at: int


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from `low` up to but not `high`; None: to the last."""

    runs: tuple[RunIds, ...]
    low: int
    high: int | None

    def __str__(self) -> str:
        return f"looking for repeated ids from {self.low} on"


@dataclass(frozen=True, slots=True)
class RepeatedIds:
    """Each ad with a repeated id that nothing else refuses: int64 [repeated ads]"""

    ad_ids: npt.NDArray[np.int64]
    file_at: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]  # within the file
    peak_memory_bytes: int


def id_ranges(runs: Sequence[Run]) -> list[IdRange]:
    ids = tuple(RunIds(run.path, run.file_at) for run in runs)
    sample = np.sort(np.concatenate([run.sample for run in runs]))
    cuts = np.unique(sample[:: max(1, RANGE_IDS // SAMPLE_STEP)][1:]).tolist()
    return [IdRange(ids, low, high) for low, high in zip([0, *cuts], [*cuts, None], strict=True)]


def find_repeated(task: IdRange) -> RepeatedIds:
    ids = []
    begins = []
    for run in task.runs:
        of_file = np.load(run.path / "ids.npy", mmap_mode="r", allow_pickle=False)
        begin = int(np.searchsorted(of_file, task.low))
        end = len(of_file) if task.high is None else int(np.searchsorted(of_file, task.high))
        ids.append(np.array(of_file[begin:end]))
        begins.append(begin)
    repeated = _repeated(np.concatenate(ids))
    found_ids, found_files, found_rows = [], [], []
    border = 0
    for run, begin, of_this in zip(task.runs, begins, ids, strict=True):
        mask = repeated[border : border + len(of_this)]
        border += len(of_this)
        places = begin + np.flatnonzero(mask)
        if not len(places):
            continue
        refused = np.load(run.path / "id_refused.npy", allow_pickle=False)[places]
        rows = np.load(run.path / "id_rows.npy", allow_pickle=False)[places]
        found_ids.append(of_this[mask][~refused])
        found_rows.append(rows[~refused])
        found_files.append(np.full(len(found_rows[-1]), run.file_at, np.int64))
    none = np.empty(0, np.int64)
    return RepeatedIds(
        np.concatenate([none, *found_ids]),
        np.concatenate([none, *found_files]),
        np.concatenate([none, *found_rows]),
        peak_memory(),
    )


def _repeated(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the ids are there more than once."""
    in_order = np.sort(ids)
    again = in_order[1:][in_order[1:] == in_order[:-1]]
    return np.isin(ids, again) if len(again) else np.zeros(len(ids), np.bool_)
