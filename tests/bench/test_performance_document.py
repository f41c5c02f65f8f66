"""docs/performance.md is what the result files make, with the paper's numbers beside ours."""

import json
import re
from pathlib import Path
from typing import Any

from grace.bench.gpu.document import NAME, performance_document
from grace.bench.gpu.options import TABLES
from grace.bench.gpu.pictures import draw_pictures
from grace.configs.marked_text import replaced

RESULTS = Path("bench") / "results" / "h200"

RUNG: dict[str, Any] = {
    "precision": "bf16", "decoder_p50_ms": 9.3, "decoder_p99_ms": 9.4, "full_p50_ms": 14.6,
    "full_p99_ms": 17.1, "mfu": 0.77, "sm_clock_mhz": 1700, "power_w": 690.0,
    "overlap_with_fp32": 0.93,
}  # fmt: skip
TIME: dict[str, Any] = {"p50_ms": 0.06, "p99_ms": 0.07, "precision": "bf16", "step": 1, "beams": 16}
MEANS: dict[str, Any] = {
    **{name: value for name, value in TIME.items() if name != "p99_ms"},
    "p99_of_means_ms": 0.07, "calls": 12,
}  # fmt: skip
RATES: dict[str, Any] = {"tflops": 571.0, "gb_per_s": 2800.0, "share_of_copy": 0.91, "mb": 3.1}
STAGES = ("queue", "input", "features", "generate", "post", "overhead")
SERVED: dict[str, Any] = {
    "precision": "bf16", "p50_ms": 21.0, "p99_ms": 44.0, "errors": 0, "valid": True,
    "client_late_p99_ms": 0.3, "stages_p50_ms": dict.fromkeys(STAGES, 1.5),
    "cpu": {"server grace-input": 0.91, "server grace-post #2": 0.55},
}  # fmt: skip
SIZED: dict[str, Any] = {
    "admitted": 4321, "decoder_p50_ms": 10.0, "decoder_p99_ms": 11.0, "admission_p50_ms": 0.21,
    "admission_p99_of_means_ms": 0.22, "admission_calls": 4, "sm_clock_mhz": 1650, "power_w": 690.0,
}  # fmt: skip
PAST: dict[str, Any] = {"past_blocks": 300}
ROWS: dict[str, list[dict[str, Any]]] = {
    "ladder": [{"rung": "L0", **RUNG}, {"rung": "D3", **RUNG}],
    "attention": [
        {"measure": "copy", "gb_per_s": 4230.0},
        {"measure": "cross", "variant": "before", **TIME, **RATES, "p50_ms": 8.8},
        {"measure": "cross", "variant": "ours", **MEANS, **RATES},
        {"measure": "self", "variant": "fa2", **TIME, **RATES, **PAST, "p50_ms": 5.4},
        {"measure": "self", "variant": "ours", **TIME, **RATES, **PAST},
        {"measure": "counters", "kernel": "self", "variant": "fa2", "unavailable": "no ncu"},
        {"measure": "counters", "kernel": "self", "variant": "ours distinct",
         "instructions": 41_200_000.0, "occupancy_percent": 31.2, "hbm_percent": 86.5},
    ],
    "gtm": [
        {"measure": "admission", "mode": "union", "sids": 30, "admitted": 9, **TIME},
        {"measure": "admission", "mode": "union", "sids": 30, "step": "all", "p50_ms": 0.21},
        {"measure": "decoder", "mode": "union", "sids": 3, "index_mb": 1, **SIZED},
        {"measure": "decoder", "mode": "union", "sids": 100, "index_mb": 9, **SIZED,
         "decoder_p50_ms": 10.4},
    ],
    "serve": [
        {"measure": "load", "rps": 1200.0, "answered_rps": 1199.0, **SERVED},
        {"measure": "saturation", "rps": 1301.0, "generate_busy": 0.962, **SERVED},
    ],
    "budget": [
        {"measure": "rates", "precision": "bf16", "copy_gb_per_s": 4230.0, "product_tflops": 794.0},
        {"measure": "product", "kernel": "16384 x 2048 x 6144", "precision": "bf16", "calls": 6,
         "gflop": 2473.9, "mb": 1761.6, "floor_ms": 3.116, "measured_ms": 3.2, "share": 0.33},
        {"measure": "whole", "precision": "bf16", "p50_ms": 9.9, "p99_ms": 11.2, "runs": 300,
         "sm_clock_mhz": 1635, "power_w": 691.0, "joules": 6.9, "product_joules": 4.615,
         "large_product_sm_clock_mhz": 1485, "large_product_power_w": 697.0},
    ],
    "overlap": [
        {"measure": "learning", "variant": "trained", "weights": 17_000_000, "steps": 2500,
         "batch": 1024, "events": 2_500_000, "train_seconds": 91.5, "loss_first": 22.1,
         "loss_final": 9.7, "sids": 120_000, "held_out_users": 512,
         "recall": {"1": 0.1, "10": 0.41}, "popularity_recall": {"1": 0.01, "10": 0.04},
         "random_recall": {"1": 8.3e-6, "10": 8.3e-5}},
        {"measure": "overlap", "variant": "trained", "precision": "bf16", "sids": 120_000,
         "requests": 512, "generated": 1024.0, "overlap": 0.9912, "worst_request": 0.951,
         "top_10": 0.998, "top_100": 0.995, "step_overlap": [1.0, 0.998, 0.994, 0.9912],
         "logit_std": [2.1, 3.3, 4.0, 2.9]},
    ],
    "others": [
        {"measure": "generate", "variant": "hf", "beams": 16, "p50_ms": 28.0, "peak_gb": 3.0,
         "seconds": 3.0},
        {"measure": "generate", "variant": "hf", "beams": 64, "unavailable": "out of memory",
         "seconds": 3.0},
        {"measure": "generate", "variant": "ours, D0", "beams": 16, "p50_ms": 1.5, "seconds": 3.0},
        {"measure": "step", "variant": "static eager", "step": 1, "p50_ms": 0.5, "seconds": 3.0},
    ],
}  # fmt: skip


def results_in(folder: Path) -> Path:
    for table, rows in ROWS.items():
        result = {"machine": "H200", "commit": "abc", "command": f"grace bench {table}"}
        (folder / f"{table}.json").write_text(json.dumps({**result, "rows": rows}))
    return folder


def test_the_document_is_current(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    made = performance_document(repository / RESULTS)
    assert text == replaced(text, NAME, made), "run make fix"


def test_every_picture_is_shown_in_its_section(tmp_path: Path) -> None:
    events = [
        {"name": stage, "ph": "X", "ts": 1e3 * number, "dur": 700.0, "args": {"requests": 16}}
        for number, stage in enumerate(STAGES[1:5])
    ]
    results_in(tmp_path)
    (tmp_path / "serve_timeline.json").write_text(json.dumps({"traceEvents": events}))
    drawn = draw_pictures(tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    shown = re.findall(r"!\[.*\]\(\.\./(\S+)\)", performance_document(tmp_path))
    assert sorted(shown) == sorted(path.name for path in drawn)
    assert set(shown) == {
        "budget.png", "gtm.png", "ladder.png", "serve.png", "serve_timeline.png",
    }  # fmt: skip


def test_a_table_without_its_rows_has_no_picture(tmp_path: Path) -> None:
    (tmp_path / "gtm.json").write_text('{"rows": []}')
    assert draw_pictures(tmp_path) == []


def test_every_table_has_a_section_and_its_command(tmp_path: Path) -> None:
    missing = performance_document(tmp_path)
    assert re.findall(r"`grace bench (\w+) --out", missing) == sorted(TABLES, key=missing.index)
    made = performance_document(results_in(tmp_path))
    assert "Not measured yet" not in made
    for table in TABLES:
        assert f"```sh\ngrace bench {table}\n```" in made


def test_our_numbers_are_next_to_the_papers_with_their_ratio(tmp_path: Path) -> None:
    made = performance_document(results_in(tmp_path))
    (rung,) = [line for line in made.splitlines() if line.startswith("| D3 |")]
    assert (
        "| 25.0/27.3 | **9.30/9.4** | 2.7x | 10 | 51.0/53.6 | 14.6/17.1 | 28.8% | 77.0% |" in rung
    )
    assert "| ours | bf16 |  | **0.060** | 0.070 (12) | 146.7x |" in made
    assert "| 1 | 16 | ours | bf16 | 300 | 3.1 | 0.224 | **0.060** | 0.070 | 90.0x |" in made
    assert "| 100 | 9 | 4,321 | **10.40** | 11.00 | +4.0% | **0.210** | 0.220 (4) |" in made
    assert "| mode | step 1 | all steps | candidates by step |" in made
    assert "| union | 0.060 | **0.210** | 9 |" in made
    assert "| hf | 28.0 (3 GB) | out of memory |" in made
    assert "| bf16 | 9.9/11.2 | 1635 / 691.0 | 1485 / 697.0 | **6.90** | 4.62 | 2.29 |" in made
    assert "generated, by beams**, P50 in ms over 3 s each" in made
    assert "| static eager | 0.500 |" in made
    assert "unavailable: no ncu" in made
    counted = "| self: ours distinct | paged | **41.2 M** | 43.8M | **31.2 %** | 36.44 % |"
    assert f"{counted} **86.5 %** | 84.46 % |" in made
    assert "| load | bf16 | 1200 | 1199 | **21.0** | **44.0** | 0 |" in made
    assert "| saturation | bf16 |  | 1301 |" in made
    assert "| server grace-input | 91% |" in made
    assert "| trained | bf16 | 120,000 | 512 | 1,024 | **99.12%** | 95.1% | 99.80% |" in made
    assert "| popularity | 1.00% | 4.00% |" in made


def test_a_command_is_shown_without_the_options_of_its_machine(tmp_path: Path) -> None:
    file = results_in(tmp_path) / "gtm.json"
    result = json.loads(file.read_text())
    measured = "grace bench gtm --commit abc --out a/gtm.json --cache /dev/shm/x --only decoder"
    file.write_text(json.dumps({**result, "command": f"{measured} && {measured} --add"}))
    made = performance_document(tmp_path)
    kept = "grace bench gtm --out a/gtm.json --only decoder"
    assert f"```sh\n{kept}\n{kept} --add\n```" in made


def test_every_part_of_a_table_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        found = re.findall(r"`([\w:]+)`", row.split("|")[0])
        assert tuple(found) == table.parts


def test_counters_that_could_not_be_read_are_one_sentence(tmp_path: Path) -> None:
    rows = [
        {"measure": "counters", "kernel": "self", "variant": name, "unavailable": "no permission"}
        for name in ("fa2", "fused")
    ]
    file = results_in(tmp_path) / "attention.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rows": rows}))
    assert "Unavailable where this was measured: no permission.\n" in performance_document(tmp_path)


def test_no_cell_breaks_its_table(tmp_path: Path) -> None:
    found = performance_document(results_in(tmp_path))
    for table in re.findall(r"(?:^\|.*\n)+", found, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
