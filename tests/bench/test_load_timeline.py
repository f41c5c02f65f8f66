"""How busy stages and threads are, from the server's trace and from Linux's counters."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grace.bench.load.thread_times import ThreadTimes
from grace.bench.load.timeline import Slice, busy_share, generated_batches, read_timeline
from grace.configs.generation import BeamProfile
from grace.server.messages import RequestBatch, Span
from grace.server.observe.timeline import Timeline

STARTS = (10.0, 10.1, 10.25)


def write_trace(path: Path) -> None:
    """Write three batches of 3 requests, each with 90 ms of generate, from 10.0 to 10.34 s."""
    timeline = Timeline()
    nothing: Any = None
    for start in STARTS:
        batch = RequestBatch(nothing, "full", BeamProfile((1,), 1), 4, (nothing,) * 3, start)
        spans = (
            Span("input", start - 0.02, start - 0.01),
            Span("features", start - 0.01, start - 0.005),
            Span("generate", start, start + 0.09),
            Span("post", start + 0.09, start + 0.1),
        )
        timeline.add(batch, spans)
    timeline.write(path)


@pytest.fixture
def slices(tmp_path: Path) -> tuple[Slice, ...]:
    write_trace(tmp_path / "trace.json")
    return read_timeline(tmp_path / "trace.json")


def test_the_busy_share_is_the_time_worked(slices: tuple[Slice, ...]) -> None:
    first = next(part for part in slices if part.stage == "generate").begin
    assert busy_share(slices, "generate", first, first + 0.1) == pytest.approx(0.9)
    assert busy_share(slices, "generate", first, first + 0.34) == pytest.approx(0.27 / 0.34)
    assert busy_share(slices, "generate", first + 0.045, first + 0.09) == pytest.approx(1)
    assert busy_share(slices, "generate", first + 0.2, first + 0.24) == 0
    both = [Slice("post", begin, end, 1) for begin, end in ((0, 3), (1, 2), (2, 4))]
    assert busy_share(both, "post", 0, 8) == pytest.approx(0.5), "overlaps count once"
    assert generated_batches(slices, first + 0.05, first + 0.2) == (2, 3)


def times(at: float, **spent: float) -> ThreadTimes:
    keys = {"main": (7, 7), "a": (7, 8), "b": (7, 9), "of_child": (11, 11), "pool": (11, 14)}
    names = {"main": "grace", "a": "python3", "b": "python3", "of_child": "grace", "pool": "grpc"}
    return ThreadTimes(
        {keys[name]: seconds for name, seconds in spent.items()},
        {keys[name]: names[name] for name in spent},
        at,
    )


def test_shares_are_per_second_and_threads_of_one_name_get_numbers() -> None:
    before = times(10.0, main=1.0, a=0.0, b=2.0, of_child=0.5)
    after = times(12.0, main=2.0, a=0.2, b=2.01, of_child=0.5, pool=0.4)
    shares = {"1 main": 0.5, "2 grpc": 0.2, "1 python3 #1": 0.1}
    assert list(after.busiest(before).items()) == list(shares.items())


OWNER_AND_CHILD = '''
import subprocess, sys, time
# The kernel's count, which is behind the clock of `time.process_time`.
work = """
import resource, time
while sum(resource.getrusage(resource.RUSAGE_THREAD)[:2]) < 0.3: pass
print()
time.sleep(60)
"""
child = subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
'''


@pytest.mark.subprocess
def test_processor_time_is_read_for_every_process_of_a_group() -> None:
    command = [sys.executable, "-c", OWNER_AND_CHILD]
    owner = subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        try:
            child = int(owner.stdout.readline())
            read = ThreadTimes.of_group(owner.pid)
        finally:
            os.killpg(owner.pid, 9)
            owner.wait()
    assert sorted(read.seconds) == sorted([(owner.pid, owner.pid), (child, child)])
    assert read.seconds[child, child] >= 0.28  # in hundredths, user and system rounded down
