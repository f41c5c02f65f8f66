"""What a reply of many ads costs the event loop, against one of none.

The loop is the server's main thread, whose time on a processor the kernel counts. So the difference
holds all that a longer reply makes the loop do, copies into the connection included; and since the
bytes are ready before they come to it, nothing of their making.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.load.client import ClosedLoop
from bench.load.client_process import run_in_a_process
from bench.load.shots import read_requests
from bench.load.tiny_server import TinyServerFiles
from bench.running_server import RunningServer

__all__ = ["LoopCost", "measure_loop_cost"]

ADS = 10_000
_NONE = 1  # `max_ads` that the server takes for none; 0 would be its default
_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Microseconds of the event loop's thread for each call: medians of the rounds.

    us_of_the_ads  the difference, of each round; `least` and `most` say how steady the machine was
    """

    ads: int
    calls: int
    us_without_ads: float
    us_with_ads: float
    us_of_the_ads: float
    least: float
    most: float


def measure_loop_cost(
    files: TinyServerFiles, log: Path, rounds: int = 9, seconds: float = 2.0
) -> LoopCost:
    """Rounds of both kinds by turns, so that a busy machine hurts both."""
    command = (sys.executable, "-m", "bench.load.long_replies")
    with RunningServer((*command, "--config", files.write_config("long.yaml")), log) as server:
        data = {ads: _requests(files, ads) for ads in (_NONE, ADS)}
        _load(server, data[ADS], 1.0)
        costs: dict[int, list[float]] = {ads: [] for ads in data}
        calls = 0
        for _ in range(rounds):
            for ads, requests in data.items():
                before = _main_thread_ns(server.pid)
                made = _load(server, requests, seconds)
                costs[ads].append((_main_thread_ns(server.pid) - before) / made / 1e3)
                calls += made
    differences = [long - short for short, long in zip(costs[_NONE], costs[ADS], strict=True)]
    return LoopCost(
        ads=ADS,
        calls=calls,
        us_without_ads=round(median(costs[_NONE]), 1),
        us_with_ads=round(median(costs[ADS]), 1),
        us_of_the_ads=round(median(differences), 1),
        least=round(min(differences), 1),
        most=round(max(differences), 1),
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
    text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii")
    return int(text.split()[0])
