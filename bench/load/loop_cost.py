"""What a call costs the server's event loop, with a reply of 10,000 ads and with one of none.

    python -m grace.bench.load.loop_cost --out bench/results/cpu-2core/loop.json

The event loop is the server's main thread, whose processor time Linux counts. The replies' bytes
are ready before they reach the loop, so the difference is what a longer reply makes the loop itself
do, copies into the connection included. With `listen.front_ends` gRPC runs in other processes, and
the loop has a link to them instead: one row is without, one with two of them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

from grace.bench.load.client import ClosedLoop
from grace.bench.load.client_process import run_in_a_process
from grace.bench.load.shots import read_requests
from grace.bench.load.tiny_server import TinyServerFiles, write_tiny_server_files
from grace.bench.result_file import record
from grace.bench.running_server import RunningServer
from grace.configs.errors import GraceError
from grace.configs.serving import load_serving_config
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.life_cycle import serve
from grace.server.messages import AnsweredBatch, GeneratedBatch, Span
from grace.server.stages.stages import STAGES

__all__ = ["LoopCost", "main", "measure_loop_cost", "serve_long_replies"]

ADS = 10_000
FRONT_ENDS = (0, 2)
_NO_ADS = 1  # the `max_ads` that stands for none; 0 would be the server's default
_IN_FLIGHT = 16
_SERVE = (
    "import sys; from grace.bench.load import loop_cost as c; c.serve_long_replies(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Microseconds of the event loop's thread for each call, as medians of the rounds.

    us_of_the_ads     the difference in each round; `least` and `most` show how steady the machine
                      was
    us_in_front_ends  all threads of the processes that run gRPC, with the ads
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
        rows = (
            asdict(measure_loop_cost(files, front_ends, options.rounds, options.seconds))
            for front_ends in FRONT_ENDS
        )
        record("python -m grace.bench.load.loop_cost", arguments, rows, options.out)


def measure_loop_cost(
    files: TinyServerFiles, front_ends: int, rounds: int, seconds: float
) -> LoopCost:
    """Alternate rounds of both kinds, so that a busy machine slows both."""
    config = files.write_config(f"long{front_ends}.yaml", listen={"front_ends": front_ends})
    log = files.folder / f"long{front_ends}.log"
    with RunningServer((sys.executable, "-c", _SERVE, config), log) as server:
        data = {ads: _requests(files, ads) for ads in (_NO_ADS, ADS)}
        _load(server, data[ADS], 1.0)
        in_loop: dict[int, list[float]] = {ads: [] for ads in data}
        in_front_ends: list[float] = []
        calls = 0
        for _ in range(rounds):
            for ads, requests in data.items():
                loop_before, others_before = _main_thread_ns(server.pid), _children_ns(server.pid)
                made = _load(server, requests, seconds)
                calls += made
                in_loop[ads].append((_main_thread_ns(server.pid) - loop_before) / made / 1e3)
                others = (_children_ns(server.pid) - others_before) / made / 1e3
                if ads == ADS:
                    in_front_ends.append(others)
    differences = [long - short for short, long in zip(in_loop[_NO_ADS], in_loop[ADS], strict=True)]
    return LoopCost(
        front_ends=front_ends,
        ads=ADS,
        calls=calls,
        us_without_ads=round(median(in_loop[_NO_ADS]), 1),
        us_with_ads=round(median(in_loop[ADS]), 1),
        us_of_the_ads=round(median(differences), 1),
        least=round(min(differences), 1),
        most=round(max(differences), 1),
        us_in_front_ends=round(median(in_front_ends), 1),
    )


def serve_long_replies(config: str) -> None:
    """Run a server whose replies hold as many ads as `max_ads` says, or none if it says 1.

    The tiny catalogue has no 10,000 ads for a user. So the last stage, after its real work, writes
    replies from an array; everything else is the real server.
    """
    ids = np.arange(ADS, dtype=np.int64)
    scores = np.linspace(-1, -9, ADS, dtype=np.float32)

    @lru_cache(maxsize=16)
    def fields_of(ads: int) -> bytes:
        """Return the bytes of N ads; a message is its fields in any order."""
        return RetrieveResponse(ad_ids=ids[:ads], scores=scores[:ads]).SerializeToString()

    def post(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
        answered = STAGES.post(batch, spans)
        answers = []
        for answer in answered.answers:
            retrieval = answer.request.retrieval
            ads = 0 if retrieval.max_ads == _NO_ADS else retrieval.max_ads
            head = RetrieveResponse(request_id=retrieval.request_id)
            answers.append(replace(answer, reply=head.SerializeToString() + fields_of(ads)))
        return replace(answered, answers=tuple(answers))

    sys.exit(serve(load_serving_config(Path(config)), replace(STAGES, post=post)))


def _requests(files: TinyServerFiles, ads: int) -> Path:
    path = files.folder / f"requests-{ads}.jsonl"
    changes = {"max_ads": ads, "profile": "reduced"}
    lines = [json.dumps({**request, **changes}) for request in read_requests(files.requests)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _load(server: RunningServer, requests: Path, seconds: float) -> int:
    """Make a closed loop from another process; return its calls, all of which must succeed.

    The count includes the warm-up calls: the event loop handled them too.
    """
    load = ClosedLoop(_IN_FLIGHT, seconds)
    result = run_in_a_process(server.address, requests, load, requests.with_suffix(".result.json"))
    assert result["grace"]["ok"] == result["count"], result["grace"]["reasons"]
    return int(result["count"] + result["grace"]["warm_up_calls"])


def _main_thread_ns(pid: int) -> int:
    """The processor time of the main thread, user and system."""
    return _ns(Path(f"/proc/{pid}/task/{pid}"))


def _children_ns(pid: int) -> int:
    """The processor time of all threads of all child processes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(_ns(task) for child in children for task in Path(f"/proc/{child}/task").iterdir())


def _ns(task: Path) -> int:
    return int((task / "schedstat").read_text(encoding="ascii").split()[0])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GraceError as error:
        sys.exit(f"error: {error}")
