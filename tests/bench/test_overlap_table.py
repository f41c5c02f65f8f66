"""`grace bench overlap`: what half precision changes is counted by request, step and rank."""

from dataclasses import replace

import pytest
import torch

from grace.bench.gpu import overlap
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.overlap import LEAST_IN_FP32, measure_overlap, shared
from grace.bench.gpu.trained_model import lesson_of, prepare, teach
from grace.configs.errors import DeviceError
from grace.kernels import REFERENCE, Beams

CPU = torch.device("cpu")


def options(*only: str) -> BenchOptions:
    return BenchOptions("overlap", CPU, "", tiny=True, only=only, sids=(2_000,))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def nodes(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_only_live_nodes_count_and_their_order_does_not() -> None:
    assert shared(nodes([5, 3, -1]), nodes([3, 9, -1])) == (1, 2)
    assert shared(nodes([5, -1, -1]), nodes([-1, -1, -1])) == (0, 0)


def test_a_tally_has_shares_of_all_requests_and_of_the_worst() -> None:
    tally = overlap._Tally()
    expected = [nodes([1, 2], [3, 4]), nodes([10, 11], [12, -1])]
    tally.add([nodes([2, 1], [3, 9]), nodes([10, 13], [12, -1])], expected)
    assert tally.share("step 0") == 3 / 4
    assert tally.share("step 1") == tally.share("all") == 2 / 3
    assert (tally.worst, tally.live) == (0.5, 3)
    tally.add(expected, expected)
    assert tally.share("all") == 5 / 6
    assert tally.worst == 0.5


def test_top_shares_compare_the_best_with_the_best() -> None:
    tally = overlap._Tally()
    wanted = torch.arange(200, dtype=torch.int32)[None]
    found = torch.cat([wanted[:, 100:], wanted[:, :100]], dim=1)
    tally.add([found], [wanted])
    assert tally.share("all") == 1.0
    assert tally.share("top 10") == tally.share("top 100") == 0.0


def test_rows_tell_what_was_learnt_and_every_precision_of_both_models() -> None:
    rows = list(measure_overlap(options()))
    learning = rows.pop(2)
    assert learning["measure"] == "learning"
    assert learning["loss_final"] < 0.6 * learning["loss_first"]
    for name in ("recall", "popularity_recall", "random_recall"):
        shares = list(learning[name].values())
        assert shares == sorted(shares)
    told = [(row["variant"], row["precision"]) for row in rows]
    assert told == [(v, p) for v in ("paper", "trained") for p in ("fp32", "bf16")]
    for row in rows:
        assert row["requests"] == 6
        assert 0 < row["generated"] <= 11
        least = LEAST_IN_FP32 if row["precision"] == "fp32" else 0.8
        assert least <= row["overlap"] <= 1
        assert len(row["step_overlap"]) == len(row["logit_std"]) == 4
        assert row["step_overlap"][-1] == row["overlap"]
    paper = rows[1]
    assert all(1.7 < std < 2.3 for std in paper["logit_std"])


def test_a_model_that_was_taught_foretells_better_than_an_untaught_one() -> None:
    lesson = lesson_of(options(), users=3)
    lesson = replace(lesson, training=replace(lesson.training, steps=120))
    taught = prepare(lesson)
    assert len(taught.users) == 3
    _, learning = teach(lesson, taught, CPU)
    # Chance over the tokens of a step is log 64 + 3 log 16 nats.
    assert learning["loss_final"] < 6.5 < 12.4 < learning["loss_first"]


def test_an_engine_that_is_another_function_in_float32_gets_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worst_first(logits: torch.Tensor, *arguments: object, **named: object) -> Beams:
        return REFERENCE.select_beams(-logits, *arguments, **named)  # type: ignore[arg-type]

    wrong = replace(REFERENCE, select_beams=worst_first)
    monkeypatch.setattr("grace.bench.gpu.overlap.load_ops", lambda device: wrong)
    with pytest.raises(DeviceError, match=r"paper in fp32: .* of the SIDs"):
        list(measure_overlap(options("paper")))
