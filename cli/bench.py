"""`grace bench`: the paper's performance tables, measured on this machine's GPU."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grace.bench.gpu.options import BenchOptions
    from grace.bench.gpu.results import Row

__all__ = ["bench"]


def bench(
    table: Annotated[
        str, typer.Argument(help="attention, gtm, ladder, serve, budget, others, overlap.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Result file, JSON; without it rows are only printed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda:0, or cpu with --tiny.")] = "cuda:0",
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Shapes for a CPU: they prove the path, not the speed.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Of each sustained measurement.")] = 3.0,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="bf16, fp16 or fp32; repeatable. Without: bf16; a server on a CPU fp32."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A part, such as L1 or admission:union; repeatable.")
    ] = None,
    sids: Annotated[
        list[int] | None, typer.Option(help="SIDs of the catalogue, not 30 million; repeatable.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(help="serve: requests a second; may be repeated.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the rows of --out that are not measured again.")
    ] = False,
    commit: Annotated[
        str | None, typer.Option(help="What is measured, where there is no git repository.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of catalogues that several commands share.")
    ] = None,
) -> None:
    """Measure one of the tables in docs/performance.md; every row agreed with its definition.

    attention: the attention kernels; --only counters: Nsight Compute's of them. gtm: admission and
    selection. ladder: decoder and whole path, rung by rung. serve: a server under load. budget: the
    decode loop kernel by kernel. others: what others do, side by side. overlap: how much of what is
    generated half precision leaves the same, after training a model. The file has each row as soon
    as it is measured.

    Example: `grace bench ladder --only D0 --only D3 --add --out bench/results/h200/ladder.json`
    """
    from grace.bench.gpu.options import BenchOptions, default_precision, device_of

    on = device_of(device)
    options = BenchOptions(
        table=table,
        device=on,
        command=shlex.join(["grace", *sys.argv[1:]]),
        tiny=tiny,
        seconds=seconds,
        rates=tuple(rate or ()),
        sids=tuple(sids or ()),
        only=tuple(only or ()),
        precisions=tuple(precision or [default_precision(table, on)]),  # type: ignore[arg-type]
        out=out,
        add=add,
        commit=commit,
        cache=cache,
    )
    from grace.bench.gpu.run_table import run_table

    run_table(options, _measure(table))


def _measure(table: str) -> "Callable[[BenchOptions], Iterator[Row]]":
    """Each table has needs of its own: a server's, Hugging Face's."""
    if table == "attention":
        from grace.bench.gpu.attention import measure_attention as measure
    elif table == "gtm":
        from grace.bench.gpu.gtm import measure_gtm as measure
    elif table == "ladder":
        from grace.bench.gpu.ladder import measure_ladder as measure
    elif table == "serve":
        from grace.bench.gpu.serve import measure_serve as measure
    elif table == "budget":
        from grace.bench.gpu.budget import measure_budget as measure
    elif table == "others":
        from grace.bench.gpu.others import measure_others as measure
    else:
        from grace.bench.gpu.overlap import measure_overlap as measure
    return measure
