"""The soak detects growth, and counts that differ between clients and server."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from grace.bench.load.soak.__main__ import count_faults
from grace.bench.load.soak.holdings import Holdings, Sample, growth_rows, growth_table, holdings_of
from grace.configs.errors import CallError

HOUR = 3600.0


def sampled(held: Callable[[float], Holdings], seconds: float = HOUR) -> list[Sample]:
    """A sample every ten seconds."""
    times = [10.0 * i for i in range(int(seconds / 10) + 1)]
    return [Sample(time, {"server": held(time)}) for time in times]


def flat(held: Callable[[float], Holdings]) -> list[bool]:
    return [row["flat"] for row in growth_rows(sampled(held))]


def test_what_grows_with_the_first_load_or_for_a_moment_is_flat_and_other_growth_is_not() -> None:
    def settles(time: float) -> Holdings:
        return Holdings(280 + min(time, 600) / 60, 17, 23 + 40 * (1800 < time < 1900), time)

    def grows(time: float) -> Holdings:
        return Holdings(280 + time / 60, 17 + int(time / 700), 23 + int(time / 200), time)

    assert flat(settles) == [True, True, True]
    assert flat(grows) == [False, False, False]
    table = growth_table(growth_rows(sampled(grows))).splitlines()
    assert table[2] == "| server | memory, MiB | 280 | 340 | +60.00 | NO |"
    assert table[3] == "| server | threads | 17 | 22 |  | NO |"


@pytest.mark.parametrize(("mib_a_minute", "seconds"), [(0.12, HOUR), (0.5, 600.0), (3.0, 120.0)])
def test_memory_that_grows_is_not_flat_and_a_slow_growth_takes_longer_to_see(
    mib_a_minute: float, seconds: float
) -> None:
    samples = sampled(lambda time: Holdings(280 + mib_a_minute * time / 60, 17, 23, time), seconds)
    (memory, *_) = growth_rows(samples)
    assert not memory["flat"]
    assert memory["slope_per_hour"] == pytest.approx(60 * mib_a_minute)


@pytest.mark.subprocess
def test_holdings_are_read_while_a_process_runs_and_its_end_is_reported() -> None:
    holder = (
        "import sys, threading\n"
        "ready = threading.Event()\n"
        "def more():\n"
        "    held = b'x' * (63 << 20), open('/dev/null')\n"
        "    print(len(held), flush=True)\n"
        "    ready.wait()\n"
        "print(0, flush=True); sys.stdin.readline()\n"
        "threading.Thread(target=more, daemon=True).start(); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = holdings_of(process.pid)
        print(file=process.stdin, flush=True)
        process.stdout.readline()
        after = holdings_of(process.pid)
        process.stdin.close()
        process.wait()
        assert after.memory_mib - before.memory_mib == pytest.approx(63, abs=3)
        assert after.threads - before.threads == 1
        assert after.descriptors - before.descriptors == 1
        with pytest.raises(CallError, match=f"process {process.pid} ended under load"):
            holdings_of(process.pid)


def test_calls_that_clients_wait_for_count_the_same_on_both_sides() -> None:
    ends = {
        "good": {"OK": 101, "deadline_unmeetable": 1},
        "malformed": {"malformed": 7},
        "health": {"OK": 3},
        "beyond_grpc": {"ResourceExhausted": 2},
    }
    assert count_faults(ends, {"OK": 101, "malformed": 7, "deadline_unmeetable": 1}) == []
    assert count_faults(ends, {"OK": 100, "malformed": 7, "deadline_unmeetable": 1}) == [
        "OK: clients saw 101, the server counted 100"
    ]
    assert count_faults(ends, {"OK": 101, "malformed": 9, "deadline_unmeetable": 1}) == [
        "malformed: clients saw 7, the server counted 9",
        "the server counted more calls than clients made",
    ]


def test_calls_that_clients_give_up_may_end_in_some_ways_at_the_server_or_not_reach_it() -> None:
    ends = {"good": {"OK": 5}, "cancelled": {"OK": 1, "withdrawn": 3, "deadline_unmeetable": 1}}
    seen = {"OK": 6, "deadline_unmeetable": 1}
    assert count_faults(ends, {**seen, "cancelled": 3}) == []
    assert count_faults(ends, {"OK": 9, "deadline_unmeetable": 1}) == []
    assert count_faults(ends, seen) == []
    assert count_faults(ends, {**seen, "cancelled": 4}) == [
        "cancelled: clients saw 0, the server counted 4",
        "the server counted more calls than clients made",
    ]
    assert count_faults(ends, {**seen, "internal": 1}) == [
        "internal: clients saw 0, the server counted 1"
    ]


def test_work_that_the_server_does_not_count_must_end_well() -> None:
    ends = {"scrape": {"OK": 5, "ConnectionRefusedError": 1}, "health": {"Unavailable": 2}}
    assert sorted(count_faults(ends, {})) == [
        "health: 2 ended with Unavailable",
        "scrape: 1 ended with ConnectionRefusedError",
    ]
