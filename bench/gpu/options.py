"""The tables of `grace bench`, and the options that one run was given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import torch

from grace.bench.result_file import commit
from grace.configs.errors import InputError
from grace.kernels import device_named
from grace.model.engine.decode_weights import PRECISIONS, Precision

Count: TypeAlias = Literal["none", "one", "many"]
"""How often an option may be given."""


class Table(NamedTuple):
    """
    module      of grace.bench, which measures the table
    parts       that --only names; none: the table is measured whole
    on_request  parts that are left out unless --only names them
    on_cpu      a CPU measures it, too; the others only try their tiny shapes there
    users       whether --users means something
    """

    module: str
    parts: tuple[str, ...] = ()
    on_request: tuple[str, ...] = ()
    sids: Count = "one"
    precisions: Count = "many"
    rates: Count = "none"
    users: Count = "none"
    on_cpu: bool = False


TABLES: Mapping[str, Table] = {
    "attention": Table(
        "gpu.attention", ("copy", "cross", "self", "counters"), ("counters",), sids="none"
    ),
    "gtm": Table(
        "gpu.gtm",
        (
            "admission:cd", "admission:bitmask", "admission:union", "admission:static",
            "admission:dynamic", "admission:exact", "selection:free", "selection:union", "decoder",
            "masks:64", "masks:1000",
        ),
        sids="many",
        precisions="one",
    ),
    "ladder": Table("gpu.ladder", ("L0", "L1", "L2", "L3", "L4", "D0", "D1", "D2", "D3", "D4")),
    "serve": Table(
        "gpu.serve",
        (
            "idle:union", "alone:union", "load:union", "saturation:union", "swap:union",
            "idle:exact", "alone:exact", "load:exact", "saturation:exact", "swap:exact",
        ),
        on_request=("swap:union",),
        rates="many",
    ),
    "fleet": Table("fleet.scaling", rates="one"),
    "budget": Table("gpu.budget"),
    "others": Table("gpu.comparison", ("hf", "prefix", "ours", "static"), precisions="one"),
    "overlap": Table("gpu.overlap", ("paper", "trained")),
    "eligibility": Table(
        "eligibility.study",
        (
            "cd", "union", "static", "dynamic", "exact",
            "shuffled:cd", "shuffled:union", "shuffled:exact",
        ),
        precisions="none", users="one", on_cpu=True,
    ),
}  # fmt: skip

SERVED = ("serve", "fleet")
"""Tables that start servers."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """
    tiny       shapes that a CPU computes in seconds: they test the path and say nothing of speed
    seconds    of each sustained measurement
    rates      requests per second offered to a server; none: the table's default
    sids       sizes of the catalogue; none: the table's default
    users      of the eligibility study; none: the table's default
    only       parts of the table; none: all
    out        the result file; None: rows are only printed
    commit     the measured commit, where there is no repository to ask
    cache      a folder for what several commands need, such as snapshots of 30 million SIDs
    """

    table: str
    device: torch.device
    tiny: bool = False
    seconds: float = 3.0
    rates: tuple[float, ...] = ()
    sids: tuple[int, ...] = ()
    users: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ("bf16",)
    out: Path | None = None
    commit: str | None = None
    cache: Path | None = None

    def __post_init__(self) -> None:
        table = _named(self.table)
        numbers = {
            "--seconds": (self.seconds,),
            "--sids": self.sids,
            "--rate": self.rates,
            "--users": self.users,
        }
        for option, given in numbers.items():
            for number in given:
                if not 0 < number < math.inf:
                    raise InputError(f"{option} {number:g}: must be a number above 0")
        self._require_device(table)
        for precision in self.precisions:
            if precision not in PRECISIONS:
                raise InputError(f"--precision {precision}: choose from {', '.join(PRECISIONS)}")
            if self.table in SERVED and self.device.type == "cpu" and precision != "fp32":
                raise InputError(
                    f"--precision {precision}: a server on a CPU computes in fp32; leave it out"
                )
        self._require_count("--precision", self.precisions, table.precisions)
        self._require_count("--sids", self.sids, table.sids)
        self._require_count("--rate", self.rates, table.rates)
        self._require_count("--users", self.users, table.users)
        for name in self.only:
            if not table.parts:
                raise InputError(f"--only {name}: {self.table} has no parts; leave it out")
            if name not in table.parts:
                raise InputError(
                    f"--only {name}: not a part of {self.table}; "
                    f"choose from {', '.join(table.parts)}"
                )

    @property
    def commit_cache(self) -> Path | None:
        """The cache's folder for this commit: another commit may make other catalogues."""
        return None if self.cache is None else self.cache / (self.commit or commit())

    def parts(self) -> tuple[str, ...]:
        """Return the parts to measure, in the table's order."""
        table = TABLES[self.table]
        asked = self.only or [part for part in table.parts if part not in table.on_request]
        return tuple(part for part in table.parts if part in asked)

    def _require_device(self, table: Table) -> None:
        if self.device.type == "cpu":
            if not self.tiny and not table.on_cpu:
                raise InputError("--device cpu: only --tiny shapes are for a CPU")
            return
        if self.device.index and self.table == "fleet":
            raise InputError(
                f"--device {self.device}: fleet starts a server on each GPU that it sees; choose "
                "GPUs by the variable CUDA_VISIBLE_DEVICES"
            )

    def _require_count(self, option: str, given: Sequence[object], count: Count) -> None:
        if given and count == "none":
            raise InputError(f"{option} {given[0]}: means nothing to {self.table}; leave it out")
        if len(given) > 1 and count == "one":
            raise InputError(f"{option} {given[1]}: {self.table} takes one only")


def device_for(table: str, name: str) -> torch.device:
    """Return the device to measure a table on."""
    return device_named(name, "--device", "cpu" if _named(table).on_cpu else "cpu with --tiny")


def default_precisions(table: str, device: torch.device) -> tuple[Precision, ...]:
    if table in TABLES and TABLES[table].precisions == "none":
        return ()
    return ("fp32" if table in SERVED and device.type == "cpu" else "bf16",)


def _named(table: str) -> Table:
    if table not in TABLES:
        raise InputError(f"{table!r} is no table; choose from {', '.join(TABLES)}")
    return TABLES[table]
