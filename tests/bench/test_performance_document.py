"""docs/performance.md is what the result files make, with the paper's numbers next to ours."""

import json
import re
import shutil
import sys
from importlib import reload
from pathlib import Path
from typing import Any

import pytest

from grace.bench import pictures
from grace.bench.gpu.pages.document import NAME, performance_document
from grace.bench.options import TABLES
from grace.bench.pictures import draw_pictures, eligible_ads
from grace.bench.result_file import Row
from grace.configs.marked_text import replaced

RESULTS = Path("bench") / "results" / "h200"
OWN = {name: table for name, table in TABLES.items() if table.module.startswith("gpu.")}


@pytest.fixture
def results(repository: Path, tmp_path: Path) -> Path:
    """A copy of the committed result files."""
    folder = tmp_path / "results"
    folder.mkdir()
    for file in (repository / RESULTS).glob("*.json"):
        shutil.copy(file, folder)
    return folder


def change(file: Path, row: Row, **values: Any) -> None:
    """Change the rows of the file that have the fields of `row`."""
    result = json.loads(file.read_text())
    changed = [each for each in result["rows"] if row.items() <= each.items()]
    assert changed, f"{file.name} has no row {row}"
    for each in changed:
        each.update(values)
    file.write_text(json.dumps(result))


def replace_rows(file: Path, *rows: Row) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "rows": rows}))


def test_the_document_is_current(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    made = performance_document(repository / RESULTS)
    assert text == replaced(text, NAME, made), "run make fix"
    for table in OWN:
        assert f"```sh not run: needs a GPU\ngrace bench {table} " in made
    for shown in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({line.count("|") for line in shown.splitlines()}) == 1, "a cell breaks its table"


def test_the_pictures_show_the_committed_results(repository: Path, results: Path) -> None:
    drawn = draw_pictures(results)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    for path, document in zip(drawn, ("README.md", "docs/eligibility.md"), strict=True):
        text = (repository / document).read_text(encoding="utf-8")
        assert f"bench/results/h200/{path.name})" in text
        assert (repository / RESULTS / path.name).is_file()
    rows = json.loads((results / "passrate.json").read_text())["rows"]
    (exact,) = [
        row["eligible_ads"]
        for row in rows
        if (row.get("catalogue"), row.get("mode"), row.get("bucket")) == ("paper", "exact", "all")
    ]
    everybody, narrow = eligible_ads(rows).values()
    assert everybody[-1] == exact
    assert narrow == sorted(narrow)


def test_without_matplotlib_one_line_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    fault = r"^error: the pictures need matplotlib.axes: \S+ -m pip install 'matplotlib\S+'$"
    with pytest.raises(SystemExit, match=fault):
        reload(pictures)


def test_the_reason_why_something_was_not_measured_is_in_its_cell(results: Path) -> None:
    change(results / "others.json", {"variant": "hf", "beams": 64}, unavailable="out of memory")
    file = results / "attention.json"
    none: Row = {"measure": "counters", "kernel": "self", "variant": "fa2", "unavailable": "no ncu"}
    counted = {"instructions": 41_200_000.0, "occupancy_percent": 31.2, "hbm_percent": 86.5}
    replace_rows(file, none, {**none, "variant": "fused"})
    made = performance_document(results)
    assert "| out of memory |" in made
    assert "Unavailable where this was measured: no ncu.\n" in made
    some = {name: value for name, value in none.items() if name != "unavailable"}
    replace_rows(file, none, {**some, "variant": "ours distinct", **counted})
    made = performance_document(results)
    assert "| self: fa2 | unavailable: no ncu |" in made
    ours = "| self: ours distinct | paged | **41.2 M** | 43.8M | **31.2 %** | 36.44 % |"
    assert f"{ours} **86.5 %** | 84.46 % |" in made


def test_every_part_of_a_table_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, table in OWN.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        assert tuple(re.findall(r"`([\w:]+)`", row.split("|")[0])) == table.parts


MASKS: Row = {"measure": "masks", "sids": 30_000_000, "values": 64, "nodes": 41_300_000}


@pytest.mark.parametrize(
    ("name", "first", "changed", "cells"),
    [
        (
            "gtm",
            {**MASKS, "step": "rules", "p50_ms": 0.068},
            {"values": 1_000, "step": "all", "p50_ms": 0.9},
            "30,000,000 | 41,300,000 | 1,000 | **0.900** |  |",
        ),
        ("serve", {"measure": "load"}, {"errors": 3, "withdrawn": 4}, "| 7 |"),
        (
            "serve",
            {"measure": "swap"},
            {"p50_ms": None, "p99_ms": None, "live_load_s": [], "live_load_faults": ["gone"]},
            "|  |  | 0 |  | 0 |  | gone | yes |",
        ),
    ],
    ids=["a step", "withdrawn calls", "live loads"],
)
def test_a_cell_that_no_committed_row_has_is_shown(
    results: Path, name: str, first: Row, changed: Row, cells: str
) -> None:
    file = results / f"{name}.json"
    rows = json.loads(file.read_text())["rows"]
    row = next((each for each in rows if first.items() <= each.items()), first)
    replace_rows(file, row, {**row, **changed})
    assert cells in performance_document(results)
