"""The tables of `grace bench`, and the options that one run was given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

from grace.bench.result_file import commit
from grace.configs.errors import InputError
from grace.configs.options import Argument, Option

Precision: TypeAlias = Literal["fp32", "bf16", "fp8"]
MANY = 1 << 30
"""How often an option may be given: 0 times, once or MANY times."""


class Table(NamedTuple):
    """
    module      of grace.bench, which measures the table
    parts       that --only names; none: the table is measured whole
    on_cpu      a CPU measures it, too; the others only try their tiny shapes there
    users       whether --users means something
    """

    module: str
    parts: tuple[str, ...] = ()
    sids: int = 1
    precisions: int = MANY
    rates: int = 0
    users: int = 0
    on_cpu: bool = False


TABLES: Mapping[str, Table] = {
    "attention": Table("gpu.attention", ("copy", "cross", "self"), sids=0),
    "gtm": Table(
        "gpu.gtm",
        (
            "admission:cd", "admission:bitmask", "admission:union", "admission:static",
            "admission:dynamic", "admission:exact", "selection:free", "selection:union", "decoder",
            "masks:64", "masks:1000", "masks:forms",
        ),
        sids=MANY,
        precisions=1,
    ),
    "ladder": Table("gpu.ladder", ("L0", "L1", "L2", "L3", "L4", "D0", "D1", "D2", "D3", "D4")),
    "serve": Table(
        "gpu.serve",
        (
            "idle:union", "alone:union", "load:union", "saturation:union",
            "idle:exact", "alone:exact", "load:exact", "saturation:exact", "swap:exact",
            "visible:exact", "fresh:exact",
        ),
        rates=MANY,
    ),
    "fleet": Table("fleet.scaling", rates=1),
    "budget": Table("gpu.budget"),
    "peers": Table("gpu.peers", ("hf", "prefix", "ours", "steps", "shapes")),
    "overlap": Table("gpu.overlap", ("paper", "trained")),
    "causal": Table(
        "gpu.causal",
        ("1.7B", "1.7B:level", "0.6B", "products:1.7B", "products:0.6B", "overlap"),
    ),
    "eligibility": Table(
        "eligibility.study",
        (
            "cd", "union", "static", "dynamic", "exact",
            "shuffled:cd", "shuffled:union", "shuffled:exact",
            "third:cd", "third:union", "third:exact",
            "nine-tenths:cd", "nine-tenths:union", "nine-tenths:exact",
        ),
        precisions=0, users=1, on_cpu=True,
    ),
}  # fmt: skip

SERVED = ("serve", "fleet")
"""Tables that start servers."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One run. Where `sids`, `rates`, `users` or `precisions` are not given, the table decides."""

    table: Annotated[
        str,
        Argument(
            "attention, gtm, ladder, serve, fleet, budget, peers, overlap, causal or eligibility.",
            "TABLE",
        ),
    ]
    device: Annotated[str, "cuda:0, or cpu (eligibility, --tiny)."] = "cuda:0"
    out: Annotated[Path | None, "Result file, JSON. Without it, only the tables remain."] = None
    tiny: Annotated[bool, "Small shapes for a CPU; their times mean nothing."] = False
    seconds: Annotated[float, "Seconds of each sustained measurement."] = 3.0
    precisions: Annotated[
        tuple[Precision, ...],
        Option(
            "bf16, fp8 or fp32; repeatable. Default: bf16; a server on a CPU: fp32.",
            name="--precision",
        ),
    ] = ()
    only: Annotated[
        tuple[str, ...], "Measure only this part, such as L1 or admission:union; repeatable."
    ] = ()
    sids: Annotated[
        tuple[int, ...], "SIDs of the catalogue instead of 30 million; repeatable."
    ] = ()
    rates: Annotated[
        tuple[float, ...],
        Option("Requests a second; repeatable for serve. For fleet: per server.", name="--rate"),
    ] = ()
    users: Annotated[tuple[int, ...], "eligibility: users of the population. Default: 512."] = ()
    commit: Annotated[str | None, "The measured commit, if there is no git repository."] = None
    static: Annotated[Path | None, "peers: a checkout of STATIC's repository."] = None
    cache: Annotated[Path | None, "Folder of catalogues that several commands share."] = None

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise InputError(f"{self.table!r} is no table; choose from {', '.join(TABLES)}")
        table, on_cpu_server = TABLES[self.table], self.table in SERVED and self.device == "cpu"
        if not self.precisions and table.precisions:
            object.__setattr__(self, "precisions", ("fp32" if on_cpu_server else "bf16",))
        self._require_device(table)
        self._require_counts(table)
        for precision in self.precisions:
            if on_cpu_server and precision != "fp32":
                raise InputError(
                    f"--precision {precision}: a server on a CPU computes in fp32; leave it out"
                )
        for name in self.only:
            if name not in table.parts:
                fault = f"not a part of {self.table}; choose from {', '.join(table.parts)}"
                if not table.parts:
                    fault = f"{self.table} has no parts; leave it out"
                raise InputError(f"--only {name}: {fault}")

    @property
    def commit_cache(self) -> Path | None:
        """The cache's folder for this commit: another commit may make other catalogues."""
        return None if self.cache is None else self.cache / (self.commit or commit())

    def parts(self) -> tuple[str, ...]:
        """Return the parts to measure, in the table's order."""
        table = TABLES[self.table]
        return tuple(part for part in table.parts if part in (self.only or table.parts))

    def _require_device(self, table: Table) -> None:
        if self.device == "cpu":
            if not self.tiny and not table.on_cpu:
                raise InputError("--device cpu: only --tiny shapes are for a CPU")
            return
        if self.table == "fleet" and self.device not in ("cuda", "cuda:0"):
            raise InputError(
                f"--device {self.device}: fleet starts a server on each GPU that it sees; choose "
                "GPUs by the variable CUDA_VISIBLE_DEVICES"
            )

    def _require_counts(self, table: Table) -> None:
        given: Mapping[str, tuple[Sequence[float | str], int]] = {
            "--seconds": ((self.seconds,), 1),
            "--sids": (self.sids, table.sids),
            "--rate": (self.rates, table.rates),
            "--users": (self.users, table.users),
            "--precision": (self.precisions, table.precisions),
            "--static": ([str(self.static)] * bool(self.static), self.table == "peers"),
        }
        for option, (values, most) in given.items():
            for value in values:
                if not isinstance(value, str) and not 0 < value < math.inf:
                    raise InputError(f"{option} {value:g}: must be a number above 0")
            if len(values) > most:
                fault = f"{self.table} takes one only"
                if not most:
                    fault = f"means nothing to {self.table}; leave it out"
                raise InputError(f"{option} {values[most]}: {fault}")
