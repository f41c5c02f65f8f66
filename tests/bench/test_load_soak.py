"""The soak detects growth, and counts that differ between clients and server."""

from collections.abc import Callable

import pytest

from grace.bench.load.soak.__main__ import count_faults
from grace.bench.load.soak.holdings import Holdings, Sample, growth_rows, growth_table


def sampled(held: Callable[[float], Holdings]) -> list[Sample]:
    """A sample every ten seconds of an hour."""
    return [Sample(10.0 * i, {"server": held(10.0 * i)}) for i in range(361)]


def flat(held: Callable[[float], Holdings]) -> list[bool]:
    return [row["flat"] for row in growth_rows(sampled(held))]


def test_what_grows_with_the_first_load_or_for_a_moment_is_flat_and_other_growth_is_not() -> None:
    def settles(time: float) -> Holdings:
        return Holdings(280 + min(time, 600) / 60, 17, 23 + 40 * (1800 < time < 1900))

    def grows(time: float) -> Holdings:
        return Holdings(280 + time / 60, 17 + int(time / 700), 23 + int(time / 200))

    assert flat(settles) == [True, True, True]
    assert flat(grows) == [False, False, False]
    assert not flat(lambda time: Holdings(280 + 0.2 * time / 60, 17, 23))[0]
    table = growth_table(growth_rows(sampled(grows))).splitlines()
    assert table[2] == "| server | memory, MiB | 280 | 340 | +60.00 | NO |"
    assert table[3] == "| server | threads | 17 | 22 |  | NO |"


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
        (GIVEN_UP, "6 OK, 1 deadline_unmeetable, 3 cancelled", []),
        (
            GIVEN_UP,
            "6 OK, 1 deadline_unmeetable, 4 cancelled",
            [
                "cancelled: clients saw 0, the server counted 4",
                "the server counted more calls than clients made",
            ],
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
