"""`grace import-sids`: from published Semantic IDs to a table of SIDs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import AsJson, numbers
from grace.cli.progress import progress_bars


def import_sids(
    source: Annotated[
        Path, typer.Argument(metavar="SIDS", help="FILE.index.json, FILE.jsonl or FILE.npy.")
    ],
    out: Annotated[Path, typer.Option(help="The table of SIDs to write, Parquet.")],
    sid_space: Annotated[
        str, typer.Option(help="Name of the SID space, which must be the model's.")
    ],
    ids: Annotated[
        Path | None,
        typer.Option(
            help="Item ids for a .npy: another .npy, or lines of text. Default: row numbers."
        ),
    ] = None,
    vocab_sizes: Annotated[
        str | None,
        typer.Option(help="Tokens per position, as 256,256,256. Default: as the tokens need."),
    ] = None,
    sid_length: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cut longer SIDs, such as one whose last token only separates items."
        ),
    ] = None,
    max_rejects: Annotated[
        int, typer.Option(min=0, help="Leave out up to this many faulty items.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn the SIDs of LETTER, LC-Rec, MiniOneRec or a codebook array into a table of SIDs.

    `grace build --sids OUT` joins it to the ads. Faulty items are listed in OUT with the ending
    .rejects.jsonl.

    Example: `grace import-sids Beauty.index.json --out sids.parquet --sid-space beauty-1`
    """
    from grace.index.importers import ImportSpec
    from grace.index.importers import import_sids as import_items

    spec = ImportSpec(
        source=source,
        out=out,
        sid_space=sid_space,
        ids=ids,
        vocab_sizes=numbers(vocab_sizes, "--vocab-sizes", "256,256,256"),
        sid_length=sid_length,
        max_rejects=max_rejects,
        force=force,
    )
    with progress_bars() as progress:
        report = import_items(spec, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
        return
    sizes = ",".join(str(size) for size in report.vocab_sizes)
    print(f"{out}: {report.items:,} items of {report.sids:,} SIDs, from {report.read:,} items")
    print(f"SID space {sid_space}, vocabulary {sizes}")
    for reason, count in report.rejects.items():
        print(f"refused {count:,}: {reason}")
    if report.reject_file is not None:
        print(f"each is listed in {report.reject_file}")
