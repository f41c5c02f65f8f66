"""Find repeated ad ids over all runs: every task looks at one range of ids, in all runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.builder.report import peak_memory
from grace.index.builder.sharding.runs import SAMPLE_STEP, Run, open_array

RANGE_IDS = 1 << 23
"""Ids of a range, if none of them is repeated."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from `low` up to but not `high`; None: to the last."""

    runs: tuple[Run, ...]
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
    sample = np.sort(np.concatenate([run.sample for run in runs]))
    cuts = np.unique(sample[:: max(1, RANGE_IDS // SAMPLE_STEP)][1:]).tolist()
    bare = tuple(run.bare() for run in runs)
    return [IdRange(bare, low, high) for low, high in zip([0, *cuts], [*cuts, None], strict=True)]


def find_repeated(task: IdRange) -> RepeatedIds:
    parts = []
    for run in task.runs:
        ids = open_array(run.path, "ids")
        begin = int(np.searchsorted(ids, task.low))
        end = len(ids) if task.high is None else int(np.searchsorted(ids, task.high))
        parts.append((run, begin, np.array(ids[begin:end])))
    in_order = np.sort(np.concatenate([ids for *_, ids in parts]))
    again = in_order[1:][in_order[1:] == in_order[:-1]]
    found = []
    for run, begin, ids in parts:
        places = np.flatnonzero(np.isin(ids, again))
        places = places[~open_array(run.path, "id_refused")[begin + places]]
        rows = np.array(open_array(run.path, "id_rows")[begin + places])
        found.append((ids[places], np.full(len(places), run.file_at), rows))
    ad_ids, file_at, rows = map(np.concatenate, zip(*found, strict=True))
    return RepeatedIds(ad_ids, file_at, rows, peak_memory())
