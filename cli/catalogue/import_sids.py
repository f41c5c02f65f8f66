import json
from dataclasses import asdict

from grace.cli.options import AsJson
from grace.cli.progress import progress_bars
from grace.cli.reports import print_facts
from grace.configs.options import ImportSpec


def import_sids(spec: ImportSpec, as_json: AsJson = False) -> None:
    """Turn the SIDs of LETTER, LC-Rec or MiniOneRec into a table of SIDs.

    `sids: OUT` in tables.yaml joins it to the ads. A faulty item ends the import.

    Example: `grace import-sids Beauty.index.json --out sids.parquet --sid-space beauty-1`
    """
    from grace.index.import_sids import import_sids as import_items

    with progress_bars() as progress:
        report = import_items(spec, progress)
    if as_json:
        print(json.dumps(asdict(report), default=str, indent=2))
    else:
        print_facts(report)
