"""An ads table and a log as a shop has them, in every format, with the SIDs to build them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.in_process import reported

Row = Mapping[str, Any]
Roles = Mapping[str, tuple[str, str | None]]
FORMATS = ("csv", "jsonl", "parquet")


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows with the same columns. In a CSV, a list is joined by `|`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    elif path.suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        path.write_text("\n".join(lines), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def write_codebook(folder: Path, ids: Sequence[object]) -> None:
    """Give every item a SID, as `grace sids` does."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"grace.sid_space": "raw-1", "grace.vocab_sizes": "63,7"}
    columns = {
        "item_id": pa.array(ids),
        "sid": pa.array([[at % 63, at % 7] for at in range(len(ids))], pa.list_(pa.uint16())),
    }
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, folder / "sids.parquet")


def numbers_of(id_map: Path) -> dict[str, int]:
    """Return the number of each name in an id map."""
    columns = pq.read_table(id_map).to_pydict()
    return dict(zip(columns["item_id"], columns["ad_id"], strict=True))


def build_data(folder: Path, *options: str) -> dict[str, Any]:
    """Run `grace build --data`; return the report that it prints."""
    return reported("build", "--data", folder, "--root", folder / "snapshots", *options)


def initialize(ads: Path, out: Path, *options: str | Path) -> dict[str, Any]:
    return reported("init", "--ads", ads, "--out", out, *options)


def roles(report: Mapping[str, Any]) -> Roles:
    return {each["column"]: (each["role"], each["name"]) for each in report["ads"]}
