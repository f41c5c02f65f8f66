import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.cli.options import AsJson
from grace.cli.progress import progress_bars
from grace.cli.reports import print_facts
from grace.configs.errors import InputError
from grace.configs.options import CodebookSpec, Option

if TYPE_CHECKING:
    from grace.index.codebook.report import SidReport

_FEW_ITEMS, _NEARLY_ALL = 1000, 0.95


def sids(
    spec: CodebookSpec,
    data: Annotated[
        Path | None, Option("Data folder whose tables.yaml has `embeddings`.", "FOLDER")
    ] = None,
    embeddings: Annotated[
        str | None,
        Option("Vectors: a file, folder or URL. With --data, columns as in tables.yaml.", "TABLE"),
    ] = None,
    codebook: Annotated[
        Path | None, Option("Codebook to give SIDs by; --out is then a file.", "FOLDER")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give items Semantic IDs: similar vectors share their first tokens.

    The command writes a codebook, and the SID of each item in `sids.parquet`. A codebook always
    gives the same vector the same SID, so `grace build --data` gives new ads SIDs by it.

    Example: `grace sids --data shop --codes 64`

    Or: `grace sids --embeddings items.parquet --levels 4 --codes 512 --out codebook`

    With --codebook, give new items SIDs by a codebook that is there, which stays as it is:
    `grace sids --codebook shop/codebook --embeddings new.parquet --out new-sids.parquet`
    """
    from grace.index.codebook.items import items_of
    from grace.index.codebook.make import give_sids, make_codebook
    from grace.index.tables.data_folder import TableSource, local_folder, read_data_folder

    if data is None and embeddings is None:
        raise InputError("no table of vectors: give --data FOLDER, --embeddings TABLE or both")
    folder = None if data is None else read_data_folder(data)
    source = None if folder is None else folder.embeddings
    if embeddings is not None:
        source = replace(source or TableSource(()), files=(embeddings,))
    if source is None:
        raise InputError(
            f"{data}/tables.yaml: no section `embeddings`, which names the table of vectors; add "
            "it, or give --embeddings TABLE and --out FOLDER"
        )
    items, place = items_of(source), local_folder(folder.sids) if folder else None
    out = spec.out or (None if codebook or embeddings else place)
    if out is None:
        what = "folder for the codebook" if codebook is None else "file for the SIDs"
        raise typer.BadParameter(f"name a {what}", param_hint="--out")
    with progress_bars() as progress:
        if codebook is None:
            from grace.model.codebook.kmeans import learn_codebook

            report = make_codebook(items, spec, out, learn_codebook, progress)
        else:
            report = give_sids(items, codebook, out, progress)
    if as_json:
        print(json.dumps({"out": str(out), **report.to_json()}, indent=1))
        return
    _print(report, out, is_codebook=codebook is None)


def _print(report: "SidReport", out: Path, *, is_codebook: bool) -> None:
    print_facts(report)
    print(f"{out} is written")
    if is_codebook and report.items > _FEW_ITEMS and report.sids > _NEARLY_ALL * report.items:
        print(
            "Nearly every item has a SID to itself, so its last token only numbers it. You may "
            "keep these SIDs; fewer --codes or --levels would give a smaller model"
        )
