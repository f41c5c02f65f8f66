"""What `grace bench` is asked for, the same for every table."""

from dataclasses import dataclass
from pathlib import Path

import torch

from bench.result_file import commit
from configs.errors import InputError
from model.fast_weights import PRECISIONS, Precision

__all__ = ["TABLES", "BenchOptions"]

TABLES = ("attention", "gtm", "ladder", "serve", "budget", "others", "overlap")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """
    tiny       shapes that a CPU computes in seconds: proves the path, says nothing of speed
    seconds    of each sustained measurement
    rates      requests a second that a server is offered; none: the table's own
    sids       sizes of the catalogue; none: the table's own
    only       parts of the table, by the names that its documentation gives; none: all
    out        the result file; None: rows are only printed
    add        keep the file's rows that are not measured again
    commit     what is measured, where there is no repository to ask
    cache      a folder for what several commands need, such as snapshots of 30 million SIDs
    """

    table: str
    device: torch.device
    command: str
    tiny: bool = False
    seconds: float = 3.0
    rates: tuple[float, ...] = ()
    sids: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ("bf16",)
    out: Path | None = None
    add: bool = False
    commit: str | None = None
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise InputError(f"{self.table!r} is no table; choose from {', '.join(TABLES)}")
        if self.seconds <= 0:
            raise InputError(f"--seconds {self.seconds:g}: must be above 0")
        for precision in self.precisions:
            if precision not in PRECISIONS:
                raise InputError(f"--precision {precision}: choose from {', '.join(PRECISIONS)}")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"--device {self.device}: torch finds no GPU; try --device cpu --tiny")
        if self.device.type == "cpu" and not self.tiny:
            raise InputError("--device cpu: only --tiny shapes are for a CPU")

    @property
    def kept(self) -> Path | None:
        """The cache's part for this commit: another may make other catalogues and checkpoints."""
        return None if self.cache is None else self.cache / (self.commit or commit())

    def wanted(self, parts: tuple[str, ...], spared: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Those of a table's parts that are asked for, in the table's order.

        `spared` are left out unless they are named.
        """
        unknown = [name for name in self.only if name not in parts]
        if unknown:
            raise InputError(f"--only {unknown[0]}: {self.table} has {', '.join(parts)}")
        usual = tuple(part for part in parts if part not in spared)
        return tuple(part for part in parts if part in (self.only or usual))
