"""`grace synth`: a synthetic catalogue of ads, and users to retrieve them for."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.progress import progress_bars

__all__ = ["synth"]


def synth(
    out: Annotated[Path, typer.Option(help="Folder to write; made if there is none.")],
    preset: Annotated[
        str, typer.Option(help="tiny, small (100,000 SIDs), demo, or paper (30 million).")
    ] = "tiny",
    sids: Annotated[
        int | None, typer.Option(help="Another number of SIDs, with small or paper up to millions.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds make equal files.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace files from before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Make a catalogue that a person can read: `ads.parquet`, `targeting.yaml`, `requests.jsonl`.

    tiny and demo have 2,000 SIDs and `interactions.parquet` to train on. Those of demo are learned
    by residual k-means; those of the others spell the catalogue's hierarchy. paper is not for
    reading: its statistics are those of the paper's index, and 30 million SIDs take minutes.

    Example: `grace synth --preset tiny --out catalogue`
    """
    if preset == "paper":
        _paper(out, sids, seed, force=force, as_json=as_json)
        return
    from grace.catalogues.synth import preset_spec, write_folder

    started = time.perf_counter()
    spec = preset_spec(preset, sids, seed)
    with progress_bars() as progress:
        written = write_folder(
            spec, out, force=force, progress=lambda done, total: progress("write", done, total)
        )
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps({"out": str(out), **asdict(written), "seconds": round(seconds, 3)}))
        return
    print(
        f"{out}: {written.ads:,} ads of {written.sids:,} SIDs with {written.distinct_rules:,} "
        f"distinct rules, {written.requests:,} requests, {written.interactions:,} interactions "
        f"({written.bytes / 1e6:.1f} MB, {seconds:.1f} s), SID space {written.sid_space}"
    )


def _paper(out: Path, sids: int | None, seed: int, *, force: bool, as_json: bool) -> None:
    from grace.catalogues.paper import paper_spec, write_paper_folder
    from grace.configs.machine import available_cores

    started = time.perf_counter()
    with progress_bars() as progress:
        written = write_paper_folder(
            paper_spec(sids, seed),
            out,
            threads=available_cores(),
            force=force,
            progress=lambda done, total: progress("write", done, total),
        )
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps({"out": str(out), **asdict(written), "seconds": round(seconds, 3)}))
        return
    print(
        f"{out}: {written.ads:,} ads of {written.sids:,} SIDs, {written.requests:,} requests "
        f"({written.bytes / 1e6:.1f} MB, {seconds:.1f} s), SID space {written.sid_space}"
    )
