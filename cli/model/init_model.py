import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import AsJson, Dtype
from grace.cli.reports import print_facts
from grace.configs.options import Option


def init_model(
    config: Annotated[Path, "YAML with the sections model and generation."],
    out: Annotated[Path | None, "Folder of the new checkpoint. Not needed with --dry-run."] = None,
    seed: Annotated[int, Option("Equal seeds give equal weights.", least=0)] = 1,
    dtype: Dtype = "bfloat16",
    dry_run: Annotated[bool, "Only print the parameters and GFLOP."] = False,
    as_json: AsJson = False,
) -> None:
    """Write random weights for a model, and print its parameters and GFLOP per request.

    Example: `grace init-model --config configs/paper.yaml --dry-run`
    """
    from grace.model.checkpoints.init import load_model_config, write_random
    from grace.model.checkpoints.model_cost import summarize_model
    from grace.model.checkpoints.weights_file import DTYPES

    if out is None and not dry_run:
        raise typer.BadParameter("name a folder, or add --dry-run", param_hint="--out")
    loaded = load_model_config(config)
    summary = summarize_model(loaded.model, loaded.generation)
    written: str | None = None
    if out is not None and not dry_run:
        written = write_random(loaded.model, out, seed, DTYPES[dtype])
    size = summary.weights * DTYPES[dtype].itemsize
    if as_json:
        facts = {**asdict(summary), "weights": summary.weights, "bytes": size}
        print(json.dumps({**facts, "dtype": dtype, "checkpoint": written}, indent=1))
        return
    shown = f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
    print(f"weights: {summary.weights:,}, {shown} as {dtype}")
    print_facts(summary)
    if written is not None:
        print(f"{out}: checkpoint {written}")
