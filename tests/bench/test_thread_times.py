"""Time on processors by thread, as Linux tells it, of a process group."""

import os
import subprocess
import sys
import time

import pytest

from grace.bench.load.thread_times import ThreadTimes, ThreadWatch

BUSY = """
import subprocess, sys, threading, time
spin = "import time\\nend = time.monotonic() + 30\\nwhile time.monotonic() < end: pass"
child = subprocess.Popen([sys.executable, "-c", spin])
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
print("begun", flush=True)
try:
    time.sleep(30)
finally:
    child.kill()
"""


def times(at: float, **spent: float) -> ThreadTimes:
    keys = {"main": (7, 7), "a": (7, 8), "b": (7, 9), "of_child": (11, 11), "pool": (11, 14)}
    names = {"main": "grace", "a": "python3", "b": "python3", "of_child": "grace", "pool": "grpc"}
    return ThreadTimes(
        {keys[name]: seconds for name, seconds in spent.items()},
        {keys[name]: names[name] for name in spent},
        at,
    )


def test_shares_are_of_a_second_and_threads_of_one_name_are_told_apart() -> None:
    before = times(10.0, main=1.0, a=0.0, b=2.0, of_child=0.5)
    after = times(12.0, main=2.0, a=0.2, b=2.01, of_child=0.5, pool=0.4)
    assert after.busiest(before) == {"1 main": 0.5, "2 grpc": 0.2, "1 python3 #1": 0.1}
    assert list(after.busiest(before)) == ["1 main", "2 grpc", "1 python3 #1"]


@pytest.mark.subprocess
def test_a_busy_process_of_the_group_is_seen_and_an_idle_one_is_not() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", BUSY], process_group=0, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "begun\n"
        with ThreadWatch(owner.pid) as watch:
            begin = time.time()
            time.sleep(1.5)
        shares = watch.busiest(begin, time.time())
    finally:
        os.killpg(owner.pid, 9)
        owner.wait()
        owner.stdout.close()
    assert list(shares) == ["2 main"]
    assert 0.1 < shares["2 main"] < 1.2


def test_a_watch_that_was_too_short_tells_nothing() -> None:
    with ThreadWatch(os.getpgid(0)) as watch:
        pass
    assert watch.busiest(0.0, time.time()) == {}
