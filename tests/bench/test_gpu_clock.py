"""Times are told per call, with what the machine did meanwhile; result files stay of one commit."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from time import sleep

import pytest
import torch

from grace.bench.gpu.agreement import require_close, require_equal, require_overlap
from grace.bench.gpu.clock import Timing, by_turns, captured, sustained, timed_on_host
from grace.bench.gpu.counted_call import COUNTED
from grace.bench.gpu.counters import all_counters, counters_of_csv, find_ncu
from grace.bench.gpu.gtm import MODES
from grace.bench.gpu.machine import Draw
from grace.bench.gpu.options import BenchOptions, device_of
from grace.bench.gpu.results import ResultFile, Row, read_rows
from grace.bench.gpu.run_table import run_table
from grace.bench.gpu.rung_runs import RUNGS
from grace.bench.gpu.tables import TABLES
from grace.configs.errors import DeviceError, InputError

CPU = torch.device("cpu")


def options(out: Path | None = None, *, commit: str = "c1", add: bool = False) -> BenchOptions:
    return BenchOptions("gtm", CPU, f"run {commit}", tiny=True, out=out, commit=commit, add=add)


def test_a_timing_is_of_one_call_of_a_run() -> None:
    timing = Timing.of([4.0, 8.0, 6.0], calls=2, seconds=1.0, draw=Draw(1980, 512.25))
    assert (timing.p50_ms, timing.mean_ms, timing.runs) == (3.0, 3.0, 3)
    assert timing.row() == {
        "p50_ms": 3.0, "p99_of_means_ms": 3.98, "mean_ms": 3.0, "runs": 3, "calls": 2,
        "sm_clock_mhz": 1980, "power_w": 512.25,
    }  # fmt: skip
    assert timing.joules == pytest.approx(3e-3 * 512.25)


def test_a_p99_is_only_of_single_calls() -> None:
    of_one, of_means = (Timing.of([4.0, 8.0], calls, 1.0, Draw()) for calls in (1, 4))
    assert of_one.quantiles().keys() == {"p50_ms", "p99_ms"}
    assert of_means.quantiles().keys() == {"p50_ms", "p99_of_means_ms"}
    assert of_one.joules is None


@pytest.mark.parametrize("time", [sustained, timed_on_host])
def test_what_happens_before_a_run_is_not_timed(time: Callable[..., Timing]) -> None:
    made: list[str] = []

    def before() -> None:
        made.append("before")
        sleep(0.002)

    timing = time(lambda: made.append("run"), CPU, 1e-9, before=before)
    assert timing.p50_ms < 1
    assert made == ["before", "run"] * (timing.runs + 1)
    (timing,) = by_turns([lambda: made.append("run")], CPU, 1e-9, befores=[before])
    assert timing.p50_ms < 1


@pytest.mark.parametrize("time", [sustained, timed_on_host])
def test_short_measurements_run_a_few_times_all_the_same(time: object) -> None:
    made: list[int] = []
    timing = time(lambda: made.append(1), CPU, 1e-9)  # type: ignore[operator]
    assert timing.runs >= 3
    assert len(made) > timing.runs  # one was to warm up
    assert timing.draw == Draw()


def test_runs_by_turns_are_told_each_with_its_own_times() -> None:
    made: list[str] = []

    def slowly() -> None:
        made.append("slow")
        sleep(0.002)

    quick, slow = by_turns([lambda: made.append("quick"), slowly], CPU, 1e-9, calls=2)
    turns = [name for name, _ in groupby(made)]
    assert turns == ["quick", "slow"] * 5
    assert quick.p50_ms < 1 <= slow.p50_ms  # of one of two calls
    assert quick.runs == slow.runs == 4 * 3


def test_calls_captured_together_run_in_their_order() -> None:
    made: list[int] = []
    captured([lambda: made.append(1), lambda: made.append(2)], CPU)()
    assert made == [1, 2]


def test_what_differs_from_its_definition_is_not_measured() -> None:
    one = torch.tensor([1.0, 2.0])
    require_close("x", one, one + 1e-4)
    require_equal("x", one, one)
    require_overlap("x", 0.98, 0.97)
    for got in (one + 1e-2, one * torch.nan):
        with pytest.raises(DeviceError, match="x: differs from its definition"):
            require_close("x", got, one)
    with pytest.raises(DeviceError, match="x: is not equal"):
        require_equal("x", one, one + 1e-6)
    with pytest.raises(DeviceError, match=r"x: 12\.3% of the SIDs"):
        require_overlap("x", 0.123, 0.5)


def write_rows(given: BenchOptions, rows: list[Row]) -> None:
    assert given.out is not None
    with ResultFile(given, given.out) as file:
        for row in rows:
            file.add(row)


def test_what_was_measured_before_a_failure_is_in_the_file(tmp_path: Path) -> None:
    def measure(given: BenchOptions) -> Iterator[Row]:
        yield {"measure": "a", "p50_ms": 1.0}
        assert given.out is not None
        assert read_rows(given.out) == [{"measure": "a", "p50_ms": 1.0}]  # and already now
        raise DeviceError("the machine is gone")

    with pytest.raises(DeviceError, match="gone"):
        run_table(options(tmp_path / "gtm.json"), measure)
    assert read_rows(tmp_path / "gtm.json") == [{"measure": "a", "p50_ms": 1.0}]


def test_rows_measured_again_replace_those_of_before_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "gtm.json"
    rows = [{"measure": "a", "step": 1, "p50_ms": 1.0}, {"measure": "a", "step": 2, "p50_ms": 2.0}]
    write_rows(options(file), rows)
    write_rows(options(file, add=True), [{"measure": "a", "step": 2, "p50_ms": 7.0}])
    assert [each.name for each in file.parent.iterdir()] == ["gtm.json"]
    assert [row["p50_ms"] for row in read_rows(file)] == [1.0, 7.0]
    assert json.loads(file.read_text())["command"] == "run c1 && run c1"
    write_rows(options(file), rows[:1])
    assert read_rows(file) == rows[:1]


def test_numbers_of_two_commits_do_not_come_into_one_file(tmp_path: Path) -> None:
    file = tmp_path / "gtm.json"
    write_rows(options(file), [{"measure": "a"}])
    with pytest.raises(InputError, match="was measured with commit 'c1', this is 'c2'"):
        ResultFile(options(file, commit="c2", add=True), file)  # before anything is measured


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"table": "speed"}, "'speed' is no table"),
        ({"seconds": 0.0}, "--seconds 0: must be above 0"),
        ({"precisions": ("int4",)}, "--precision int4"),
        ({"tiny": False}, "only --tiny shapes are for a CPU"),
        ({"device": torch.device("meta")}, "--device meta: torch knows no such device; use cuda:0"),
        ({"table": "budget", "only": ("copy",)}, "--only copy: budget has no parts; leave it out"),
        ({"only": ("nope",)}, "--only nope: gtm has admission:cd, .*, decoder"),
        ({"sids": (0,)}, "--sids 0: must be above 0"),
        ({"table": "attention", "sids": (5,)}, "--sids 5: means nothing to attention"),
        ({"table": "ladder", "sids": (5, 7)}, "--sids 7: ladder takes one only"),
        ({"rates": (63.0,)}, "--rate 63.0: means nothing to gtm; leave it out"),
        ({"table": "serve", "precisions": ("fp32",), "rates": (-5.0,)}, "--rate -5: must be a num"),
        ({"precisions": ("bf16", "fp16")}, "--precision fp16: gtm takes one only"),
        ({"table": "serve"}, "--precision bf16: a server on a CPU computes in fp32; leave it out"),
    ],
)
def test_what_cannot_be_measured_or_means_nothing_is_refused(
    changed: dict[str, object], fault: str
) -> None:
    given = {"table": "gtm", "device": CPU, "command": "", "tiny": True} | changed
    with pytest.raises(InputError, match=fault):
        BenchOptions(**given)  # type: ignore[arg-type]


def test_a_device_that_torch_does_not_know_is_refused_with_those_it_does() -> None:
    with pytest.raises(InputError, match="--device gpu: torch knows no such device; use"):
        device_of("gpu")
    assert device_of("cpu") == CPU


def test_parts_are_asked_for_by_name() -> None:
    some = BenchOptions("attention", CPU, "", tiny=True, only=("counters", "cross"))
    assert some.wanted() == ("cross", "counters")
    assert replace(some, only=()).wanted() == ("copy", "cross", "self")
    assert replace(some, table="gtm", only=()).wanted() == TABLES["gtm"].parts
    with pytest.raises(InputError, match=r"--only cross: ladder has L0, L1, .*, D3"):
        replace(some, table="ladder", only=("cross",))


def test_parts_are_those_that_the_tables_measure() -> None:
    assert TABLES["ladder"].parts == RUNGS
    admissions = [f"admission:{mode}" for mode in MODES]
    assert [part for part in TABLES["gtm"].parts if "admission" in part] == admissions


def test_some_parts_do_not_replace_a_file_of_all(tmp_path: Path) -> None:
    file = tmp_path / "gtm.json"
    write_rows(options(file), [{"measure": "a"}])
    some = replace(options(file), only=("decoder",))
    with pytest.raises(InputError, match=r"gtm\.json is already there .* give --add to keep"):
        ResultFile(some, file)
    write_rows(replace(some, add=True), [{"measure": "b"}])
    assert read_rows(file) == [{"measure": "a"}, {"measure": "b"}]
    write_rows(replace(some, out=tmp_path / "new.json"), [{"measure": "b"}])


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
    def measure(given: BenchOptions) -> Iterator[Row]:
        pytest.fail(f"{given.table} was measured")

    with pytest.raises(InputError, match=fault):
        run_table(options(tmp_path / out), measure)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_measures_nothing_leaves_what_was_there(tmp_path: Path) -> None:
    def measure(given: BenchOptions) -> Iterator[Row]:
        if given.command:
            raise DeviceError("the machine is gone")
        yield {}

    file = tmp_path / "gtm.json"
    for before in ([], ["gtm.json"]):
        with pytest.raises(DeviceError, match="gone"):
            run_table(options(file), measure)
        assert [each.name for each in tmp_path.iterdir()] == before
        write_rows(options(file), [{"measure": "a"}])
    assert read_rows(file) == [{"measure": "a"}]


NCU = """==PROF== Connected to process 7
"ID","Kernel Name","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active","smsp__inst_executed.sum"
"","","%","us","%","inst"
"0","warm","10.5","2.25","50.0","1,000"
"1","at::cuda::spin_kernel(long)","0.1","9,999.0","0.1","100"
"2","fill","10.5","2.25","50.0","1,000"
"3","_attend","84.46","117.5","36.4","43,800,000"
"4","at::cuda::spin_kernel(long)","0.1","9,999.0","0.1","100"
"5","flash","2.38","5,566","12.19","2,480,000,000"
"""


def test_counters_are_those_of_the_longest_kernel_of_each_marked_call() -> None:
    assert counters_of_csv(NCU) == [
        {
            "kernel_name": "_attend",
            "instructions": 43_800_000.0,
            "occupancy_percent": 36.4,
            "hbm_percent": 84.46,
            "microseconds": 117.5,
        },
        {
            "kernel_name": "flash",
            "instructions": 2_480_000_000.0,
            "occupancy_percent": 12.19,
            "hbm_percent": 2.38,
            "microseconds": 5566.0,
        },
    ]
    assert counters_of_csv("==ERROR== ERR_NVGPUCTRPERM") == []


def test_without_the_tool_counters_say_why_there_are_none() -> None:
    rows = all_counters(options())
    assert [(row["kernel"], row["variant"]) for row in rows] == list(COUNTED)
    reason = "Nsight Compute (ncu) is not on this machine"
    assert {row["unavailable"] for row in rows} == {reason}


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM: no permission'", "ncu: ERR_NVGPUCTRPERM: no permi"),
        (f"cat <<'END'\n{NCU}END", r"told of 2 of 5 calls, exit 0: it said nothing"),
        ("echo 'no module' >&2; exit 3", r"told of 0 of 5 calls, exit 3: no module"),
    ],
)
def test_what_the_tool_says_is_the_reason(
    says: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    on_gpu = replace(options(), device=CPU)
    object.__setattr__(on_gpu, "device", torch.device("cuda"))
    assert all(re.search(told, row["unavailable"]) for row in all_counters(on_gpu))


def test_the_tool_is_found_where_it_installs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_ncu(tmp_path) is None
    for version in ("2024.1.0", "2025.3.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch(mode=0o755)
    assert find_ncu(tmp_path) == str(tmp_path / "2025.3.1" / "ncu")
