"""`grace bench`: the paper's tables, measured on this machine."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from grace.cli.options import AsJson
from grace.cli.signals import ending_in_order
from grace.configs.errors import InputError
from grace.configs.extras import install_command
from grace.configs.options import Argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grace.bench.gpu.options import BenchOptions
    from grace.bench.result_file import Row


def bench(
    table: Annotated[
        str,
        Argument("attention, gtm, ladder, serve, fleet, budget, others, overlap or eligibility."),
    ],
    out: Annotated[Path | None, "Result file, JSON. Without it, only the tables remain."] = None,
    device: Annotated[str, "cuda:0, or cpu (eligibility, --tiny)."] = "cuda:0",
    tiny: Annotated[bool, "Small shapes for a CPU; their times mean nothing."] = False,
    seconds: Annotated[float, "Seconds of each sustained measurement."] = 3.0,
    precision: Annotated[
        list[str] | None,
        "bf16, fp8, fp16 or fp32; repeatable. Default: bf16; a server on a CPU: fp32.",
    ] = None,
    only: Annotated[
        list[str] | None, "Measure only this part, such as L1 or admission:union; repeatable."
    ] = None,
    sids: Annotated[
        list[int] | None, "SIDs of the catalogue instead of 30 million; repeatable."
    ] = None,
    rate: Annotated[
        list[float] | None, "Requests a second; repeatable for serve. For fleet: per server."
    ] = None,
    users: Annotated[int | None, "eligibility: users of the population. Default: 512."] = None,
    add: Annotated[bool, "Keep the rows of --out that this run does not measure."] = False,
    commit: Annotated[str | None, "The measured commit, if there is no git repository."] = None,
    cache: Annotated[Path | None, "Folder of catalogues that several commands share."] = None,
    snapshots: Annotated[
        Path | None, "eligibility: ROOT or ROOT/VERSION of your own. --only names modes."
    ] = None,
    checkpoint: Annotated[Path | None, "With --snapshots: the model that serves it."] = None,
    requests: Annotated[Path | None, "With --snapshots: requests, as JSON lines."] = None,
    config: Annotated[
        Path | None, "With --snapshots: a server's configuration, for its default profile."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure one of the tables in docs/performance.md, docs/eligibility.md or docs/fleet.md.

    Every row has passed its agreement test.

    attention: the attention kernels; with --only counters: their counters from Nsight Compute. gtm:
    admission and selection. ladder: decoder and whole path, rung by rung. serve: a server under
    load. fleet: one server per GPU, with Envoy in front. budget: the decode loop, kernel by kernel.
    others: other systems, side by side. overlap: the share of results that stays the same in lower
    precision; trains a model first. eligibility: what each way to decode returns to users, for
    docs/eligibility.md; also on a CPU. With --snapshots it compares modes on your own snapshot.
    The file, and standard output with --json, get each row as soon as it is measured. Without
    --json, the tables follow at the end.

    Example: `grace bench ladder --only D0 --only D3 --add --out bench/results/h200/ladder.json`
    """
    from grace.bench.gpu.options import TABLES, BenchOptions, default_precisions, device_for

    on = device_for(table, device)
    own = (snapshots, checkpoint, requests, config)
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
        from grace.bench.gpu.instruments.measure import device_text
        from grace.bench.gpu.subjects.workload import workload_of
        from grace.bench.result_file import facts_of, record

        # Each table imports only what it needs, such as the server's packages or Hugging Face's.
        module = import_module(f"grace.bench.{TABLES[table].module}")
        from grace.bench.result_tables import printed_tables
        from grace.cli.tables import print_markdown

        facts = facts_of("grace", sys.argv[1:], device_text(on))
    except ModuleNotFoundError as error:
        raise InputError(
            f"grace bench {table} needs {error.name}: {install_command('gpu', 'bench')}"
        ) from None
    if commit is not None:
        facts["commit"] = commit
    with ending_in_order():  # some tables start servers
        rows = _own_rows(options, *own) if any(own) else module.measure(workload_of(options))
        kept = record(rows, out, facts, add=add, only=options.only, print_rows=as_json)
    if not as_json:
        print_markdown(printed_tables(table, kept))


def _own_rows(
    options: "BenchOptions",
    snapshots: Path | None,
    checkpoint: Path | None,
    requests: Path | None,
    config: Path | None,
) -> "Iterator[Row]":
    """Compare modes on the caller's own snapshot."""
    from grace.bench.eligibility.own_catalogue import OwnCatalogue, measure
    from grace.configs.eligibility import Eligibility
    from grace.configs.serving import load_serving_config

    if options.table != "eligibility":
        raise InputError(f"--snapshots: means nothing to {options.table}; leave it out")
    if options.sids or options.users:
        raise InputError("--sids, --users: --snapshots decides them; leave them out")
    if snapshots is None or checkpoint is None or requests is None or config is None:
        raise InputError(
            "--snapshots, --checkpoint, --requests and --config belong together: give all four"
        )
    generation = load_serving_config(config, snapshots, checkpoint).generation
    profile = generation.profiles[generation.default_profile]
    modes = tuple(map(Eligibility.of, options.only or ("exact", "union")))
    own = OwnCatalogue(snapshots, modes, checkpoint, requests, profile)
    return measure(own, options.device)
