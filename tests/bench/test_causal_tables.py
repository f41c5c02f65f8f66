"""`grace bench causal`, on shapes that a CPU computes: its rows and their tables are complete."""

from dataclasses import replace

import pytest
from torch import Tensor

from grace.bench.gpu import causal
from grace.bench.gpu.pages.causal_tables import causal_tables
from grace.bench.result_file import Row, rows_of
from grace.configs.errors import DeviceError
from grace.kernels import REFERENCE
from grace.kernels.attention.prompt_attention import Heads
from support.bench_workloads import tiny


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(causal.measure(tiny("causal", precisions=("fp8",))))


def test_every_part_has_its_rows(rows: list[Row]) -> None:
    wholes = [(x["variant"], x["mode"], x["kind"]) for x in rows_of(rows, "whole")]
    models = ("1.7B", "all"), ("1.7B", "level"), ("0.6B", "all")
    kinds = {"all": ("longest", "uniform"), "level": ("longest",)}
    assert wholes == [(*model, kind) for model in models for kind in 2 * kinds[model[1]]]
    for row in rows_of(rows, "whole"):
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["padding"] == 0) == (row["kind"] == "longest")
    kept = [row["kept"] for row in rows_of(rows, "overlap")]
    assert kept == ["", "feed_forward", "qkv", "self_out"]
    assert all(0.6 < row["overlap"] <= 1 for row in rows_of(rows, "overlap", "agreement"))
    operations = {row["kernel"] for row in rows_of(rows, "part") if row["variant"] == "0.6B"}
    products = {"qkv", "self_out, added", "gate and up", "down, added", "log_sums"}
    steps = {f"prompt_attention, step {step}" for step in (1, 2)}
    assert operations == products | steps | {"causal_attention", "place_heads"}


def test_any_part_of_the_rows_is_printed(rows: list[Row]) -> None:
    for part in (rows, *([row] for row in rows)):
        assert causal_tables(part)
    batch_4 = [{**row, "batch": 4} for row in rows_of(rows, "whole")]
    assert "NVIDIA 47.7, SGLang 102" in causal_tables(batch_4)
    assert "FlashRec 60/s" in causal_tables(batch_4)


def unturned(given: Heads, pairs: Tensor) -> Tensor:
    return REFERENCE.place_heads(replace(given, positions=given.positions * 0), pairs)


@pytest.mark.parametrize(
    ("part", "fault"), [("1.7B", "the small causal model"), ("products:0.6B", "place_heads")]
)
def test_a_wrong_operation_gets_no_row(part: str, fault: str) -> None:
    wrong = replace(REFERENCE, place_heads=unturned)
    work = replace(tiny("causal", part, precisions=("bf16",)), load_ops=lambda device: wrong)
    with pytest.raises(DeviceError, match=fault):
        list(causal.measure(work))
