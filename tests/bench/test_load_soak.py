"""The soak detects growth, and counts that differ between clients and server."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from grace.bench.load.soak.__main__ import count_faults
from grace.bench.load.soak.holdings import Holdings, Sample, growth_rows, growth_table, holdings_of
from grace.configs.errors import CallError


def sampled(held: Callable[[float], Holdings]) -> list[Sample]:
    """A sample every ten seconds of an hour."""
    return [Sample(10.0 * i, {"server": held(10.0 * i)}) for i in range(361)]


def flat(held: Callable[[float], Holdings]) -> list[bool]:
    return [row["flat"] for row in growth_rows(sampled(held))]


def test_what_grows_with_the_first_load_or_for_a_moment_is_flat_and_other_growth_is_not() -> None:
    def settles(time: float) -> Holdings:
        return Holdings(280 + min(time, 600) / 60, 17, 23 + 40 * (1800 < time < 1900), time)

    def grows(time: float) -> Holdings:
        return Holdings(280 + time / 60, 17 + int(time / 700), 23 + int(time / 200), time)

    assert flat(settles) == [True, True, True]
    assert flat(grows) == [False, False, False]
    assert not flat(lambda time: Holdings(280 + 0.12 * time / 60, 17, 23, time))[0]
    table = growth_table(growth_rows(sampled(grows))).splitlines()
    assert table[2] == "| server | memory, MiB | 280 | 340 | +60.00 | NO |"
    assert table[3] == "| server | threads | 17 | 22 |  | NO |"


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


GIVEN_UP = {"good": {"OK": 5}, "cancelled": {"OK": 1, "withdrawn": 3, "deadline_unmeetable": 1}}
WAITED_FOR = {
    "good": {"OK": 101, "deadline_unmeetable": 1},
    "malformed": {"malformed": 7},
    "health": {"OK": 3},
    "beyond_grpc": {"ResourceExhausted": 2},
}


@pytest.mark.parametrize(
    ("ends", "counted", "faults"),
    [
        (WAITED_FOR, "101 OK, 7 malformed, 1 deadline_unmeetable", []),
        (
            WAITED_FOR,
            "100 OK, 7 malformed, 1 deadline_unmeetable",
            ["OK: clients saw 101, the server counted 100"],
        ),
        (
            WAITED_FOR,
            "101 OK, 9 malformed, 1 deadline_unmeetable",
            [
                "malformed: clients saw 7, the server counted 9",
                "the server counted more calls than clients made",
            ],
        ),
        (GIVEN_UP, "6 OK, 1 deadline_unmeetable, 3 cancelled", []),
        (GIVEN_UP, "9 OK, 1 deadline_unmeetable", []),
        (GIVEN_UP, "6 OK, 1 deadline_unmeetable", []),
        (
            GIVEN_UP,
            "6 OK, 1 deadline_unmeetable, 4 cancelled",
            [
                "cancelled: clients saw 0, the server counted 4",
                "the server counted more calls than clients made",
            ],
        ),
        (
            GIVEN_UP,
            "6 OK, 1 deadline_unmeetable, 1 internal",
            ["internal: clients saw 0, the server counted 1"],
        ),
        (
            {"scrape": {"OK": 5, "ConnectionRefusedError": 1}},
            "",
            ["scrape: 1 ended with ConnectionRefusedError"],
        ),
    ],
)
def test_clients_and_server_count_the_same_except_calls_that_clients_give_up(
    ends: dict[str, dict[str, int]], counted: str, faults: list[str]
) -> None:
    pairs = (each.split() for each in counted.split(", ") if each)
    assert count_faults(ends, {name: int(count) for count, name in pairs}) == faults
