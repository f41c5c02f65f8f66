"""Times are of one call, options are checked, and result files stay of one commit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grace.bench.gpu.instruments import measure
from grace.bench.gpu.instruments.measure import (
    PowerDraw,
    Timing,
    by_turns,
    sustained,
    timed_on_host,
)
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row, read_result, record
from grace.configs.errors import DeviceError, InputError
from support.bench_workloads import CPU


class Clock:
    """A clock that moves only by calls of `takes`; `log` has their names."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.seconds

    def takes(self, name: str, milliseconds: float) -> Callable[[], None]:
        def work() -> None:
            self.seconds += milliseconds / 1e3
            self.log.append(name)

        return work


def test_a_timing_is_of_one_call_of_a_run() -> None:
    timing = Timing.of([4.0, 8.0, 6.0], calls=2, draw=PowerDraw(1980, 512.25))
    assert timing.row() == {
        "p50_ms": 3.0, "p99_of_means_ms": 3.98, "mean_ms": 3.0, "runs": 3, "calls": 2,
        "sm_clock_mhz": 1980, "power_w": 512.25,
    }  # fmt: skip
    assert timing.joules == pytest.approx(3e-3 * 512.25)
    single = Timing.of([4.0, 8.0], calls=1, draw=PowerDraw())
    assert single.quantiles() == {"p50_ms": 6.0, "p99_ms": 7.96}
    assert single.joules is None


def test_only_the_run_is_timed_after_a_warm_up_and_by_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(measure, "perf_counter", clock)
    run, before = clock.takes("run", 3.0), clock.takes("before", 5.0)
    timing = sustained(run, CPU, 0.031, calls=2, before=before)
    assert (timing.p50_ms, timing.p99_ms) == pytest.approx((1.5, 1.5))
    assert timing.runs == 4  # of 8 ms in 31
    assert clock.log == ["before", "run"] * 5
    assert timed_on_host(run, CPU, 1e-9).runs == 3
    assert clock.log[10:] == ["run"] * 4
    clock.log.clear()
    quick, slow = by_turns([(clock.takes("quick", 1.0), None), (run, before)], CPU, 1e-9, calls=2)
    assert (quick.p50_ms, slow.p50_ms) == pytest.approx((0.5, 1.5))
    turn = ["quick"] * 3 + ["before", "run"] * 3
    assert clock.log == ["quick", "before", "run"] + turn * 4  # the first of each warms up


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"table": "speed"}, "'speed' is no table"),
        ({"tiny": False}, "only --tiny shapes are for a CPU"),
        ({"table": "budget", "only": ("copy",)}, "--only copy: budget has no parts; leave it out"),
        ({"only": ("nope",)}, "--only nope: not a part of gtm; choose from admission:cd, "),
        ({"sids": (0,)}, "--sids 0: must be a number above 0"),
        ({"table": "ladder", "sids": (5, 7)}, "--sids 7: ladder takes one only"),
        ({"rates": (63.0,)}, "--rate 63.0: means nothing to gtm; leave it out"),
        ({"table": "serve", "precisions": ("fp32",), "rates": (-5.0,)}, "--rate -5: must be a num"),
        ({"precisions": ("bf16", "fp32")}, "--precision fp32: gtm takes one only"),
        (
            {"table": "serve", "precisions": ("bf16",)},
            "--precision bf16: a server on a CPU computes in fp32; leave it out",
        ),
        ({"table": "fleet", "device": "cuda:1"}, "--device cuda:1: fleet starts a"),
    ],
)
def test_options_that_mean_nothing_are_refused(changed: dict[str, object], fault: str) -> None:
    given = {"table": "gtm", "device": "cpu", "tiny": True} | changed
    with pytest.raises(InputError, match=fault):
        BenchOptions(**given)  # type: ignore[arg-type]


def write(
    file: Path, *rows: Row, commit: str = "c1", add: bool = False, only: tuple[str, ...] = ()
) -> None:
    facts = {"machine": "m1", "commit": commit, "command": f"run {commit}"}
    record(rows, file, facts, add=add, only=only)


def nothing() -> Iterator[Row]:
    yield from ()
    pytest.fail("a row was measured")


def test_a_file_has_the_rows_that_were_measured_before_a_failure(tmp_path: Path) -> None:
    def fails(*rows: Row) -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            yield row
            assert read_result(file)["rows"] == list(rows[:number])  # before the next is measured
        raise DeviceError("the machine is gone")

    file = tmp_path / "gtm.json"
    for rows, left in (((), []), (({"measure": "a"}, {"measure": "b"}), ["gtm.json"])):
        for _ in range(2):  # a run that measures nothing leaves the file as it was
            with pytest.raises(DeviceError, match="gone"):
                record(fails(*rows), file, {})
            assert [each.name for each in tmp_path.iterdir()] == left
    with pytest.raises(DeviceError, match="gone"):
        record(fails(), file, {})
    assert read_result(file)["rows"] == list(rows)


def test_rows_measured_again_replace_the_old_ones_of_the_same_commit(tmp_path: Path) -> None:
    file = tmp_path / "gtm.json"
    rows = [{"measure": "a", "step": step, "p50_ms": float(step)} for step in (1, 2)]
    write(file, *rows)
    write(file, {"measure": "a", "step": 2, "p50_ms": 7.0}, add=True, only=("a",))
    result = read_result(file)
    assert [row["p50_ms"] for row in result["rows"]] == [1.0, 7.0]
    assert result["command"] == "run c1 && run c1"
    with pytest.raises(InputError, match="was measured with commit 'c1', this is 'c2'"):
        write(file, rows[0], commit="c2", add=True)
    with pytest.raises(InputError, match=r"gtm\.json is already there .* give --add to keep"):
        write(file, rows[0], only=("decoder",))
    assert read_result(file) == result
    write(file, rows[0])
    assert read_result(file)["rows"] == rows[:1]


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        (".", r"--out \S+: is a folder; name a file"),
        ("none/gtm.json", r"--out \S+/none/gtm\.json: its folder does not exist; make it first"),
        (f"{'x' * 240}.json", r"--out \S+: cannot be written: File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, out: str, fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        record(nothing(), tmp_path / out, {})
    assert list(tmp_path.iterdir()) == []
