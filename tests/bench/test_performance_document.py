"""docs/performance.md is what the result files make, with the paper's numbers next to ours."""

import json
import re
import shutil
import sys
from importlib import reload
from pathlib import Path

import pytest

from grace.bench import pictures
from grace.bench.gpu.pages.document import NAME, performance_document
from grace.bench.options import TABLES
from grace.bench.pictures import draw_pictures, eligible_ads
from grace.configs.marked_text import replaced

RESULTS = Path("bench") / "results" / "h200"
OWN = {name: table for name, table in TABLES.items() if table.module.startswith("gpu.")}


def test_the_document_is_current(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    made = performance_document(repository / RESULTS)
    assert text == replaced(text, NAME, made), "run make fix"
    for table in OWN:
        assert f"```sh not run: needs a GPU\ngrace bench {table} " in made
    for shown in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({line.count("|") for line in shown.splitlines()}) == 1, "a cell breaks its table"


def test_the_pictures_show_the_committed_results(repository: Path, tmp_path: Path) -> None:
    results = shutil.copytree(repository / RESULTS, tmp_path / "results")
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


def test_every_part_of_a_table_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, table in OWN.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        assert tuple(re.findall(r"`([\w:]+)`", row.split("|")[0])) == table.parts
