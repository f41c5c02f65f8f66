import os
import sys
from importlib import import_module
from typing import Annotated

from grace.bench.options import TABLES, BenchOptions
from grace.cli.options import AsJson
from grace.cli.reports import print_all
from grace.cli.signals import ending_in_order
from grace.configs.errors import InputError
from grace.configs.extras import install_command


def bench(
    options: BenchOptions,
    add: Annotated[bool, "Keep the rows of --out that this run does not measure."] = False,
    as_json: AsJson = False,
) -> None:
    """Measure one of the tables in docs/performance.md, docs/eligibility.md or docs/fleet.md.

    Every row has passed its agreement test.

    attention: the attention kernels. gtm: admission and selection. ladder: decoder and whole path,
    rung by rung. serve: a server under load. fleet: one server per GPU, with Envoy in front.
    budget: the decode loop, kernel by kernel. peers: other programs, side by side. overlap: the
    share of results that stays the same in lower precision; trains a model first. causal: models of
    the Qwen3 kind, whole and part by part. eligibility: what each way to decode returns to users,
    for docs/eligibility.md; also on a CPU.
    The file, and standard output with --json, get each row as soon as it is measured. Without
    --json, the tables follow at the end.

    Example: `grace bench ladder --only D0 --only D3 --add --out bench/results/h200/ladder.json`
    """
    from grace.kernels import device_named

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the tables report what calls see
    table = options.table
    instead = "cpu" if TABLES[table].on_cpu else "cpu with --tiny"
    on = device_named(options.device, "--device", instead)
    try:
        from grace.bench.gpu.instruments.measure import device_text
        from grace.bench.gpu.subjects.workload import workload_of
        from grace.bench.result_file import facts_of, record

        # Each table imports only what it needs, such as the server's packages or Hugging Face's.
        module = import_module(f"grace.bench.{TABLES[table].module}")
        from grace.bench.result_tables import printed_tables

        facts = facts_of("grace", sys.argv[1:], device_text(on))
    except ModuleNotFoundError as error:
        raise InputError(
            f"grace bench {table} needs {error.name}: {install_command('gpu', 'bench')}"
        ) from None
    if options.commit is not None:
        facts["commit"] = options.commit
    with ending_in_order():  # some tables start servers
        rows = module.measure(workload_of(options))
        kept = record(rows, options.out, facts, add=add, only=options.only, print_rows=as_json)
    if not as_json:
        from rich.markdown import Markdown

        print_all(Markdown(printed_tables(table, kept)))
