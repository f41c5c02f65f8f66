"""`grace bench`: the paper's tables, measured on this machine."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from grace.configs.errors import InputError
from grace.configs.extras import install_command


def bench(
    table: Annotated[
        str,
        typer.Argument(
            help="attention, gtm, ladder, serve, budget, others, overlap or eligibility."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Result file, JSON. Without it, rows are only printed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda:0, or cpu (eligibility, --tiny).")] = "cuda:0",
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Small shapes for a CPU; their times mean nothing.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Seconds of each sustained measurement.")] = 3.0,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="bf16, fp16 or fp32; repeatable. Default: bf16; a server on a CPU: fp32."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Measure only this part, such as L1 or admission:union; repeatable."),
    ] = None,
    sids: Annotated[
        list[int] | None,
        typer.Option(help="SIDs of the catalogue instead of 30 million; repeatable."),
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(help="serve: requests a second; repeatable.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="eligibility: users of the population. Default: 512.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the rows of --out that this run does not measure.")
    ] = False,
    commit: Annotated[
        str | None, typer.Option(help="The measured commit, if there is no git repository.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of catalogues that several commands share.")
    ] = None,
) -> None:
    """Measure one of the tables in docs/performance.md, or the study in docs/eligibility.md.

    Every row has passed its agreement test.

    attention: the attention kernels; with --only counters: their counters from Nsight Compute. gtm:
    admission and selection. ladder: decoder and whole path, rung by rung. serve: a server under
    load. budget: the decode loop, kernel by kernel. others: other systems, side by side. overlap:
    the share of results that stays the same in half precision; trains a model first. eligibility:
    what each way to decode returns to users, for docs/eligibility.md; also on a CPU. The file gets
    each row as soon as it is measured.

    Example: `grace bench ladder --only D0 --only D3 --add --out bench/results/h200/ladder.json`
    """
    from grace.bench.gpu.options import TABLES, BenchOptions, default_precisions, device_of

    on = device_of(device)
    options = BenchOptions(
        table=table,
        device=on,
        tiny=tiny,
        seconds=seconds,
        rates=tuple(rate or ()),
        sids=tuple(sids or ()),
        only=tuple(only or ()),
        users=() if users is None else (users,),
        precisions=tuple(precision or default_precisions(table, on)),  # type: ignore[arg-type]
        out=out,
        commit=commit,
        cache=cache,
    )
    try:
        from grace.bench.gpu.measure import device_text
        from grace.bench.gpu.workload import workload_of
        from grace.bench.result_file import facts_of, record

        # Each table imports only what it needs, such as the server's packages or Hugging Face's.
        module = import_module(f"grace.bench.{TABLES[table].module}")
        facts = facts_of("grace", sys.argv[1:], device_text(on))
    except ModuleNotFoundError as error:
        raise InputError(
            f"grace bench {table} needs {error.name}: {install_command('gpu', 'bench')}"
        ) from None
    if commit is not None:
        facts["commit"] = commit
    record(module.measure(workload_of(options)), out, facts, add=add, only=options.only)
