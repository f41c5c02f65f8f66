"""`grace bench overlap`: what half precision changes is counted by request, step and rank."""

from collections.abc import Iterator

import pytest
import torch

from grace.bench.gpu.overlap import LEAST_IN_FP32, Tally, measure
from grace.bench.gpu.subjects.workload import workload_of
from grace.bench.options import BenchOptions


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def nodes(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_a_tally_has_shares_of_all_requests_and_of_the_worst() -> None:
    tally = Tally()
    expected = [nodes([1, 2], [3, 4]), nodes([10, 11], [12, -1])]
    tally.add([nodes([2, 1], [3, 9]), nodes([10, 13], [12, -1])], expected)
    assert tally.share("step 0") == 3 / 4
    assert tally.share("step 1") == tally.share("all") == 2 / 3
    assert (tally.worst, tally.wanted["all"]) == (0.5, 3)
    tally.add(expected, expected)
    assert tally.share("all") == 5 / 6
    assert tally.worst == 0.5
    ordered = Tally()
    wanted = torch.arange(200, dtype=torch.int32)[None]
    ordered.add([torch.cat([wanted[:, 100:], wanted[:, :100]], dim=1)], [wanted])
    assert [ordered.share(name) for name in ("all", "top 10", "top 100")] == [1.0, 0.0, 0.0]


def test_rows_have_the_training_and_every_precision_of_both_models() -> None:
    options = BenchOptions("overlap", "cpu", tiny=True, sids=(2_000,), precisions=("bf16", "fp8"))
    rows = list(measure(workload_of(options)))
    learning = next(row for row in rows if row["measure"] == "learning")
    rows.remove(learning)
    assert learning["loss_final"] < 0.6 * learning["loss_first"]
    for name in ("recall", "popularity_recall", "random_recall"):
        shares = list(learning[name].values())
        assert shares == sorted(shares)
    names = [(row["variant"], row["precision"]) for row in rows]
    assert names == [(v, p) for v in ("paper", "trained") for p in ("fp32", "bf16", "fp8")]
    for row in rows:
        assert row["requests"] == 6
        assert 0 < row["generated"] <= 11
        least = LEAST_IN_FP32 if row["precision"] == "fp32" else 0.8
        assert least <= row["overlap"] <= 1
        assert len(row["step_overlap"]) == len(row["logit_std"]) == 4
        assert row["step_overlap"][-1] == row["overlap"]
        assert ("recall" in row) == (row["variant"] == "trained")
    assert rows[3]["recall"] == learning["recall"]
    for row in rows[4:]:
        for k, share in row["recall"].items():
            assert abs(share - learning["recall"][k]) < 0.34  # one of six people
    assert all(1.7 < std < 2.3 for std in rows[1]["logit_std"])
