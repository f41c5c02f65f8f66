"""docs/performance.md is what the result files make, with the paper's numbers next to ours."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from grace.bench.gpu.document import NAME, performance_document
from grace.bench.gpu.options import TABLES
from grace.bench.gpu.pictures import draw_pictures
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


def test_every_picture_is_shown_in_its_section(results: Path) -> None:
    drawn = draw_pictures(results)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    shown = re.findall(r"!\[.*\]\(\.\./(\S+)\)", performance_document(results))
    assert sorted(shown) == sorted(path.name for path in drawn)
    assert set(shown) == {
        "budget.png", "gtm.png", "ladder.png", "serve.png", "serve_timeline.png",
    }  # fmt: skip


def test_every_table_has_a_section_and_its_command(results: Path, tmp_path: Path) -> None:
    missing = performance_document(tmp_path)
    assert re.findall(r"`grace bench (\w+) --out", missing) == sorted(OWN, key=missing.index)
    made = performance_document(results)
    assert "Not measured yet" not in made
    for table in OWN:
        assert f"```sh\ngrace bench {table} " in made


def test_our_numbers_are_next_to_the_papers_with_their_ratio(results: Path) -> None:
    times = {"decoder_p50_ms": 9.3, "decoder_p99_ms": 9.4, "full_p50_ms": 14.6, "full_p99_ms": 17.1}
    change(results / "ladder.json", {"rung": "D3"}, **times, mfu=0.77)
    attention, means = results / "attention.json", {"p99_of_means_ms": 0.07, "calls": 12}
    change(attention, {"variant": "before"}, p50_ms=8.8)
    change(attention, {"measure": "cross", "variant": "ours"}, p50_ms=0.06, **means)
    change(attention, {"variant": "fa2", "step": 1}, p50_ms=5.4)
    ours = {"variant": "ours", "step": 1, "beams": 16_384}
    change(attention, ours, p50_ms=0.06, past_blocks=300, mb=3.1, **means)
    gtm = results / "gtm.json"
    change(gtm, {"measure": "decoder", "sids": 3_000_000}, decoder_p50_ms=10.0)
    last = {"admission_p50_ms": 0.21, "admission_p99_of_means_ms": 0.22, "admission_calls": 4}
    times = {"decoder_p50_ms": 10.4, "decoder_p99_ms": 11.0}
    change(gtm, {"measure": "decoder", "sids": 100_000_000}, **times, **last)
    change(results / "budget.json", {"measure": "whole"}, joules=6.9, product_joules=4.615)
    made = performance_document(results)
    for cells in (
        "25.0/27.3 | **9.30/9.4** | 2.7x | 10 | 51.0/53.6 | 14.6/17.1 | 28.8% | 77.0%",
        "ours | bf16 |  | **0.060** | 0.070 (12) | 146.7x",
        "1 | 16,384 | ours | bf16 | 300 | 3.1 | 0.224 | **0.060** | 0.070 (12) | 90.0x",
        "**10.40** | 11.00 | +4.0% | **0.210** | 0.220 (4)",
        "**6.90** | 4.62 | 2.29",
    ):
        assert f"| {cells} |" in made


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


def test_a_command_is_shown_without_the_options_of_its_machine(results: Path) -> None:
    file = results / "gtm.json"
    result = json.loads(file.read_text())
    measured = "grace bench gtm --commit abc --out a/gtm.json --cache /dev/shm/x --only decoder"
    file.write_text(json.dumps({**result, "command": f"{measured} && {measured} --add"}))
    kept = "grace bench gtm --out a/gtm.json --only decoder"
    assert f"```sh\n{kept}\n{kept} --add\n```" in performance_document(results)


def test_every_part_of_a_table_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, table in OWN.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        assert tuple(re.findall(r"`([\w:]+)`", row.split("|")[0])) == table.parts


def test_no_cell_breaks_its_table(results: Path) -> None:
    made = performance_document(results)
    for table in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
