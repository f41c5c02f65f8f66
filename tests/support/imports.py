"""Imports of published SIDs, as tests ask for them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grace.index.importers import ImportReport, ImportSpec, import_sids
from support.builds import silent


def import_spec(source: Path, content: str | bytes | None = None, **changes: Any) -> ImportSpec:
    """An import of this file, after this content was written to it."""
    if content is not None:
        source.write_bytes(content.encode() if isinstance(content, str) else content)
    return replace(ImportSpec(source, source.parent / "sids.parquet", "beauty-1"), **changes)


def run_import(spec: ImportSpec) -> ImportReport:
    return import_sids(spec, silent)


def imported(spec: ImportSpec) -> tuple[dict[int | str, tuple[int, ...]], ImportReport]:
    """The SID of each item in the table, and the report."""
    report = run_import(spec)
    table = pq.read_table(spec.out)
    assert table.schema.field("item_id").type in (pa.int64(), pa.string())
    assert table.schema.field("sid").type == pa.list_(pa.uint16())
    sids = [tuple(sid) for sid in table["sid"].to_pylist()]
    return dict(zip(table["item_id"].to_pylist(), sids, strict=True)), report


def rejects_of(spec: ImportSpec) -> list[dict[str, Any]]:
    lines = spec.reject_file.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
