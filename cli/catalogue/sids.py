"""`grace sids`: Semantic IDs from embeddings."""

import json
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.facts import print_facts
from grace.cli.options import AsJson
from grace.cli.progress import progress_bars
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
        str | None, Option("Parquet or JSON lines; a file, folder or URL.", "TABLE")
    ] = None,
    codebook: Annotated[
        Path | None, "Give new items SIDs by this codebook, and add them to its table."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give items Semantic IDs: similar vectors share their first tokens.

    The command writes a codebook, and the SID of each item in `sids.parquet`. A codebook always
    gives the same vector the same SID, so `--codebook` adds new items.

    Example: `grace sids --data shop --codes 64`

    Or: `grace sids --embeddings items.parquet --levels 4 --codes 512 --out codebook`
    """
    from grace.index.codebook.items import items_of
    from grace.index.tables.data_folder import TableSource

    if (data is None) == (embeddings is None):
        raise InputError("no table of vectors, or two: give --data FOLDER or --embeddings TABLE")
    if data is not None:
        items, place = _of_folder(data)
    else:
        items, place = items_of(TableSource((str(embeddings),))), None
    if codebook is not None:
        _require_no_choices(spec, codebook)
        _extend(items, codebook, as_json)
        return
    out = spec.out or place
    if out is None:
        raise typer.BadParameter("name a folder for the codebook", param_hint="--out")
    from grace.index.codebook.make import make_codebook
    from grace.model.codebook.kmeans import learn_codebook

    with progress_bars() as progress:
        report = make_codebook(items, spec, out, learn_codebook, progress)
    if as_json:
        print(json.dumps({"out": str(out), **report.to_json()}, indent=1))
        return
    _print(report, str(out))
    if report.items > _FEW_ITEMS and report.sids > _NEARLY_ALL * report.items:
        print(
            "Nearly every item has a SID to itself, so its last token only numbers it. You may "
            "keep these SIDs; fewer --codes or --levels would give a smaller model"
        )


def _require_no_choices(spec: CodebookSpec, codebook: Path) -> None:
    for field in fields(CodebookSpec):
        if getattr(spec, field.name) != field.default:
            option = f"--{field.name.replace('_', '-')}"
            raise InputError(
                f"{option}: an option of a new codebook, but --codebook {codebook} keeps its own; "
                "leave one of them out"
            )


def _of_folder(data: Path) -> tuple[Any, Path | None]:
    """Return the items of a data folder, and the folder of its codebook."""
    from grace.index.codebook.items import items_of
    from grace.index.tables.data_folder import TABLES_FILE, local_folder, read_data_folder

    folder = read_data_folder(data)
    if folder.embeddings is None:
        raise InputError(
            f"{data / TABLES_FILE}: no section `embeddings`, which names the table of vectors; "
            "add it, or give --embeddings TABLE and --out FOLDER"
        )
    return items_of(folder.embeddings), local_folder(folder.sids)


def _extend(items: Any, codebook: Path, as_json: bool) -> None:
    from grace.index.codebook.make import extend
    from grace.index.tables.data_folder import SIDS_FILE
    from grace.index.tables.item_numbers import map_lock

    table = codebook / SIDS_FILE
    lock = map_lock(table) if codebook.is_dir() else nullcontext()
    with lock, progress_bars() as progress:
        found = extend(items, codebook, progress)
    if as_json:
        rest = {"new": found.new, "changed": found.changed, **found.report.to_json()}
        print(json.dumps({"out": str(table), **rest}, indent=1))
        return
    _print(found.report, str(table))
    print(f"{found.new:,} items are new; {found.changed:,} have another SID than before")
    last, before = found.report.levels[-1].error, found.facts.errors[-1]
    print(f"error after the last level {last:.1%}; it was {before:.1%} when the codebook was made")


def _print(report: "SidReport", out: str) -> None:
    print_facts(report)
    print(f"{out} is written")
