"""docs/performance.md is what the result files make, with the paper's numbers next to ours."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from grace.bench.gpu.options import TABLES
from grace.bench.gpu.pages.document import NAME, performance_document
from grace.bench.gpu.pages.pictures import draw_pictures
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
        assert f"```sh not run: needs a GPU\ngrace bench {table} " in made


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


def test_a_rung_that_the_paper_does_not_have_is_shown_without_its_numbers(results: Path) -> None:
    file = results / "ladder.json"
    (last, *_) = [row for row in json.loads(file.read_text())["rows"] if row["rung"] == "D3"]
    times = {"decoder_p50_ms": 9.3, "decoder_p99_ms": 9.4, "full_p50_ms": 14.6, "full_p99_ms": 17.1}
    replace_rows(file, {**last, "rung": "D4", **times})
    made = performance_document(results)
    cells = "bf16 |  | **9.30/9.4** |  | D1 + 0.05 |  | 14.6/17.1 |"
    assert f"| D4 | D1 + exact eligibility | {cells}" in made


def test_eligible_nodes_have_a_row_per_size_and_a_column_per_step(results: Path) -> None:
    row = {"measure": "masks", "sids": 30_000_000, "values": 64, "nodes": 41_300_000}
    times = {"all": 0.545, "rules": 0.068, "leaves": 0.228}
    steps = [{**row, "step": step, "p50_ms": time} for step, time in times.items()]
    replace_rows(results / "gtm.json", *steps, {**steps[0], "values": 1_000, "p50_ms": 0.9})
    made = performance_document(results)
    assert "| 30,000,000 | 41,300,000 | 64 | **0.545** | 0.068 | 0.228 |\n" in made
    assert "| 30,000,000 | 41,300,000 | 1,000 | **0.900** |  |  |\n" in made


def test_loads_have_their_mode_and_older_ones_are_of_union(results: Path) -> None:
    file = results / "serve.json"
    (old, *_) = [row for row in json.loads(file.read_text())["rows"] if row.get("rps") == 1200.0]
    old = {name: value for name, value in old.items() if name != "mode"}
    replace_rows(file, old, {**old, "mode": "exact", "errors": 3, "withdrawn": 4})
    made = performance_document(results)
    shown = [line.split(" | ") for line in made.splitlines() if line.startswith("| load |")]
    errors = [(cells[1], cells[7]) for cells in shown if cells[1] != "mode"]
    assert errors == [("union", "0"), ("exact", "7")]


def test_loads_with_and_without_live_loads_are_in_one_row(results: Path) -> None:
    file = results / "serve.json"
    (row, *_) = [row for row in json.loads(file.read_text())["rows"] if row.get("rps") == 400.0]
    alone = {"alone_p50_ms": 9.0, "alone_p99_ms": 15.0, "alone_errors": 0, "alone_withdrawn": 0}
    swap = {
        **row, "measure": "swap", "mode": "exact", "precision": "bf16", "p50_ms": 10.0,
        "p99_ms": 21.0, "errors": 2, "withdrawn": 1, **alone, "alone_valid": True,
        "live_load_s": [2.5, 2.0, 3.0], "live_load_faults": ["UNAVAILABLE: gone"],
    }  # fmt: skip
    replace_rows(file, row, swap)
    shown = "9.0 | 15.0 | 0 | **10.0** | **21.0** | 3 | 1.40x | 3 | 2.5, 3.0 | UNAVAILABLE: gone |"
    assert f"| exact | bf16 | 400 | {shown} yes |" in performance_document(results)
    replace_rows(file, row, {**swap, "p50_ms": None, "p99_ms": None, "live_load_s": []})
    assert "|  |  | 3 |  | 0 |  | UNAVAILABLE: gone | yes |" in performance_document(results)


def test_a_command_is_shown_without_the_options_of_its_machine(results: Path) -> None:
    file = results / "gtm.json"
    result = json.loads(file.read_text())
    measured = "grace bench gtm --commit abc --out a/gtm.json --cache /dev/shm/x --only decoder"
    file.write_text(json.dumps({**result, "command": f"{measured} && {measured} --add"}))
    kept = "grace bench gtm --out a/gtm.json --only decoder"
    assert f"\n{kept}\n{kept} --add\n```" in performance_document(results)


def test_every_part_of_a_table_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, table in OWN.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        assert tuple(re.findall(r"`([\w:]+)`", row.split("|")[0])) == table.parts


def test_no_cell_breaks_its_table(results: Path) -> None:
    made = performance_document(results)
    for table in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_recall_is_shown_by_the_engines_precision(results: Path) -> None:
    shares = {"1": 0.1, "10": 0.3, "50": 0.48, "100": 0.54}
    trained = {"measure": "overlap", "variant": "trained", "precision": "bf16"}
    change(results / "overlap.json", trained, recall=shares)
    made = performance_document(results)
    assert "| engine, bf16 | 10.00% | 30.00% | 48.00% | 54.00% |" in made
    assert "| engine, fp16" not in made
