import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson, Force
from grace.cli.progress import progress_bars
from grace.cli.reports import print_facts


def synth(
    out: Annotated[Path, "Folder to write; created if it does not exist."],
    preset: Annotated[str, "tiny, small (100,000 SIDs), demo, or paper (30 million)."] = "tiny",
    sids: Annotated[
        int | None, "Number of SIDs instead of the preset's; millions with small or paper."
    ] = None,
    seed: Annotated[int, "Equal seeds give equal files."] = 1,
    raw: Annotated[bool, "Write a shop's raw tables instead: docs/quickstart.md."] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a catalogue that a person can read: `ads.parquet`, `targeting.yaml`, `requests.jsonl`.

    tiny and demo have 2,000 SIDs, and `interactions.parquet` to train on. The SIDs of demo are
    learned by residual k-means; those of the other presets follow the catalogue's hierarchy. paper
    is not for reading: it has the statistics of the paper's index, and 30 million SIDs take
    minutes.

    With `--raw`, the ads are in `ads.csv` without SIDs, their embeddings in `items.parquet`, and
    the log in `clicks.csv`.

    Example: `grace synth --preset tiny --out catalogue`
    """
    from grace.catalogues.paper.files import write_paper_folder
    from grace.catalogues.paper.spec import PAPER_SIDS, PaperSpec
    from grace.catalogues.synth import preset_spec, write_folder, write_raw_folder
    from grace.configs.errors import InputError
    from grace.configs.machine import available_cores

    started = time.perf_counter()
    with progress_bars() as bars:
        progress = partial(bars, "write")
        if raw and preset == "paper":
            raise InputError("--raw: preset paper has neither titles nor a log; choose another")
        if raw:
            made = write_raw_folder(preset_spec(preset, sids, seed), out, force=force)
        elif preset == "paper":
            spec = PaperSpec(PAPER_SIDS if sids is None else sids, seed)
            threads = available_cores()
            made = write_paper_folder(spec, out, threads=threads, force=force, progress=progress)
        else:
            made = write_folder(
                preset_spec(preset, sids, seed), out, force=force, progress=progress
            )
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps({"out": str(out), **asdict(made), "seconds": round(seconds, 3)}))
        return
    print_facts(made)
    print(f"{out} is written, in {seconds:.1f} s")
