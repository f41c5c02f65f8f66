"""`grace sids`: Semantic IDs from embeddings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import AsJson, Force, numbers
from grace.cli.progress import progress_bars
from grace.configs.errors import InputError
from grace.configs.extras import install_command

if TYPE_CHECKING:
    import torch

    from grace.model.codebook.make import Made
    from grace.model.codebook.report import SidReport


_FEW_ITEMS, _NEARLY_ALL = 1000, 0.95


def sids(
    embeddings: Annotated[
        str,
        typer.Option(metavar="TABLE", help="Parquet, JSON lines or .npy; a file, folder or URL."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the codebook; with --codebook, a separate table of SIDs."),
    ] = None,
    codebook: Annotated[
        Path | None,
        typer.Option(help="Give new items SIDs by this codebook, and add them to its table."),
    ] = None,
    levels: Annotated[int, typer.Option(min=1, max=16, help="Tokens of a SID.")] = 4,
    codes: Annotated[
        str, typer.Option(help="Codes of every level, or of each: 512,256,256.")
    ] = "512",
    balance: Annotated[
        float,
        typer.Option(help="Cap on the items of the fullest code; 1 is an even share, 0 is no cap."),
    ] = 2.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Equal seeds give equal SIDs on one device.")
    ] = 1,
    id_column: Annotated[str | None, typer.Option(help="Column with the items' ids.")] = None,
    vector_column: Annotated[str | None, typer.Option(help="Column with the vectors.")] = None,
    ids: Annotated[
        Path | None,
        typer.Option(help="Ids for a .npy: another .npy, or lines of text. Default: row numbers."),
    ] = None,
    sid_space: Annotated[
        str | None, typer.Option(help="Name of the SID space. Default: made from the codebook.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda:0. Default: a GPU if there is one.")
    ] = None,
    plot: Annotated[bool, typer.Option(help="Draw the report, codebook.png.")] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Give items Semantic IDs: similar vectors share their first tokens.

    The command writes a codebook, and the SID of each item in `sids.parquet`. A codebook always
    gives the same vector the same SID, so `--codebook` adds new items.

    Example: `grace sids --embeddings items.parquet --levels 4 --codes 512 --out codebook`
    """
    from grace.kernels import device_named
    from grace.model.codebook.items import open_items

    items = open_items(embeddings, ids, id_column, vector_column)
    on = device_named(device, "--device")
    if codebook is not None:
        _extend(items, codebook, out, on, force, as_json)
        return
    if out is None:
        raise typer.BadParameter("name a folder for the codebook", param_hint="--out")
    from grace.model.codebook.make import CodebookSpec, make_codebook

    spec = CodebookSpec(out, _sizes(levels, codes), seed, balance, sid_space, force)
    draw = _drawing(as_json) if plot else None
    with progress_bars() as progress:
        made = make_codebook(items, spec, on, progress)
    if draw is not None:
        draw(made, out)
    if as_json:
        print(json.dumps({"out": str(out), **made.report.to_json()}, indent=1))
        return
    _print(made.report, str(out))


def _extend(
    items: Any, codebook: Path, out: Path | None, device: "torch.device", force: bool, as_json: bool
) -> None:
    from grace.model.codebook.folder import SIDS
    from grace.model.codebook.make import extend

    if out is not None and out.exists() and not force:
        raise InputError(f"--out {out} is already there; --force replaces it")
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file, such as new.parquet")
    with progress_bars() as progress:
        found = extend(items, codebook, out, device, progress)
    written = out or codebook / SIDS
    if as_json:
        rest = {"new": found.new, "changed": found.changed, **found.report.to_json()}
        print(json.dumps({"out": str(written), **rest}, indent=1))
        return
    _print(found.report, str(written))
    if out is None:
        print(f"{found.new:,} items are new; {found.changed:,} have another SID than before")
    last, before = found.report.levels[-1].error, found.facts.errors[-1]
    print(f"error after the last level {last:.1%}; it was {before:.1%} when the codebook was made")


def _sizes(levels: int, codes: str) -> tuple[int, ...]:
    sizes = numbers(codes, "--codes", "512 or 512,256,256")
    if len(sizes) == 1:
        return sizes * levels
    if len(sizes) != levels:
        raise typer.BadParameter(
            f"{len(sizes)} sizes for {levels} levels; give one size, or one for each level",
            param_hint="--codes",
        )
    return sizes


def _drawing(quiet: bool) -> "Callable[[Made, Path], None] | None":
    """Return a function that draws the report, or None without matplotlib."""
    from grace.model.codebook.folder import PICTURE

    try:
        from grace.model.codebook.picture import draw_report
    except ModuleNotFoundError as error:
        if not quiet:
            print(f"no {PICTURE}: it needs {error.name}: {install_command('plots')}")
        return None
    return lambda made, out: draw_report(made, out / PICTURE)


def _print(report: "SidReport", out: str) -> None:
    from rich.table import Table

    from grace.cli.tables import table_console

    sizes = ",".join(str(level.codes) for level in report.levels)
    table = Table(box=None, pad_edge=False)
    fullest, entropy = "fullest, even shares", "entropy, bits"
    for heading in ("level", "codes", "unused", fullest, entropy, "prefixes", "error"):
        table.add_column(heading, justify="right")
    for number, level in enumerate(report.levels, 1):
        table.add_row(
            str(number),
            f"{level.codes:,}",
            f"{level.unused:,}",
            f"{level.fullest:.1f}",
            f"{level.entropy:.2f}",
            f"{level.prefixes:,}",
            f"{level.error:.1%}",
        )
    table_console().print(table)
    per = " · ".join(
        f"{'max' if percent == 100 else f'p{percent}'} {count:,}"
        for percent, count in report.items_per_sid.items()
    )
    print(f"\n{report.items:,} items have {report.sids:,} SIDs; items per SID: {per}")
    if report.items > _FEW_ITEMS and report.sids > _NEARLY_ALL * report.items:
        print(
            "Nearly every item has a SID to itself, so its last token only numbers it: fewer "
            "--codes or --levels give a model that trains faster"
        )
    print(f"SID space {report.sid_space}, vocabulary {sizes}")
    print(f"{out} is written")
