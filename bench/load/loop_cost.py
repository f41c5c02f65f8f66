"""What a call costs the event loop, with a reply of many ads and with one of none.

    python -m grace.bench.load.loop_cost --out bench/results/cpu-2core/loop.json

The loop is the server's main thread, whose time on a processor the kernel counts. So the difference
holds all that a longer reply makes the loop do, copies into the connection included; and since the
bytes are ready before they come to it, nothing of their making.

With `listen.front_ends` gRPC is not on that thread, and costs it a link to other processes instead:
there is a row without, and one with two of them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from grace.bench.load.client import ClosedLoop
from grace.bench.load.client_process import run_in_a_process
from grace.bench.load.shots import read_requests
from grace.bench.load.tiny_server import TinyServerFiles, write_tiny_server_files
from grace.bench.result_file import write_result
from grace.bench.running_server import RunningServer
from grace.configs.errors import GraceError

__all__ = ["LoopCost", "main", "measure_loop_cost"]

ADS = 10_000
FRONT_ENDS = (0, 2)
_NONE = 1  # `max_ads` that the server takes for none; 0 would be its default
_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Microseconds of the event loop's thread for each call: medians of the rounds.

    us_of_the_ads     the difference, of each round; `least` and `most` say how steady the machine
                      was
    us_in_front_ends  of all threads of the processes that hold gRPC, with the ads
    """

    front_ends: int
    ads: int
    calls: int
    us_without_ads: float
    us_with_ads: float
    us_of_the_ads: float
    least: float
    most: float
    us_in_front_ends: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.load.loop_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder))
        costs = [
            measure_loop_cost(files, front_ends, options.rounds, options.seconds)
            for front_ends in FRONT_ENDS
        ]
    rows = [asdict(cost) for cost in costs]
    for row in rows:
        print(json.dumps(row))
    write_result(options.out, "python -m grace.bench.load.loop_cost", arguments, rows)


def measure_loop_cost(
    files: TinyServerFiles, front_ends: int, rounds: int, seconds: float
) -> LoopCost:
    """Rounds of both kinds by turns, so that a busy machine hurts both."""
    command = (sys.executable, "-m", "grace.bench.load.long_replies")
    config = files.write_config(f"long{front_ends}.yaml", listen={"front_ends": front_ends})
    log = files.folder / f"long{front_ends}.log"
    with RunningServer((*command, "--config", config), log) as server:
        data = {ads: _requests(files, ads) for ads in (_NONE, ADS)}
        _load(server, data[ADS], 1.0)
        costs: dict[int, list[float]] = {ads: [] for ads in data}
        elsewhere: dict[int, list[float]] = {ads: [] for ads in data}
        calls = 0
        for _ in range(rounds):
            for ads, requests in data.items():
                before, others = _main_thread_ns(server.pid), _children_ns(server.pid)
                made = _load(server, requests, seconds)
                costs[ads].append((_main_thread_ns(server.pid) - before) / made / 1e3)
                elsewhere[ads].append((_children_ns(server.pid) - others) / made / 1e3)
                calls += made
    differences = [long - short for short, long in zip(costs[_NONE], costs[ADS], strict=True)]
    return LoopCost(
        front_ends=front_ends,
        ads=ADS,
        calls=calls,
        us_without_ads=round(median(costs[_NONE]), 1),
        us_with_ads=round(median(costs[ADS]), 1),
        us_of_the_ads=round(median(differences), 1),
        least=round(min(differences), 1),
        most=round(max(differences), 1),
        us_in_front_ends=round(median(elsewhere[ADS]), 1),
    )


def _requests(files: TinyServerFiles, ads: int) -> Path:
    path = files.folder / f"requests-{ads}.jsonl"
    asked = {"max_ads": ads, "profile": "reduced"}
    lines = [json.dumps({**request, **asked}) for request in read_requests(files.requests)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _load(server: RunningServer, requests: Path, seconds: float) -> int:
    """A closed loop from another process; the calls it made, which must all be answered.

    Those of its warm-up are among them: the event loop had them too.
    """
    load = ClosedLoop(_IN_FLIGHT, seconds)
    result = run_in_a_process(server.address, requests, load, requests.with_suffix(".result.json"))
    assert result["grace"]["ok"] == result["count"], result["grace"]["reasons"]
    return int(result["count"] + result["grace"]["warm_up_calls"])


def _main_thread_ns(pid: int) -> int:
    """On a processor, user and system time."""
    return _ns(Path(f"/proc/{pid}/task/{pid}"))


def _children_ns(pid: int) -> int:
    """Likewise, of all threads of all processes that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(_ns(task) for child in children for task in Path(f"/proc/{child}/task").iterdir())


def _ns(task: Path) -> int:
    return int((task / "schedstat").read_text(encoding="ascii").split()[0])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GraceError as error:
        sys.exit(f"error: {error}")
