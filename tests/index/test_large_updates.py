"""A large update leaves the interpreter's lock to other threads: a server goes on answering."""

import threading
from collections.abc import Callable
from pathlib import Path
from time import clock_gettime, pthread_getcpuclockid, thread_time

import numpy as np
import pytest

from grace.index.updates.log import UpdateLog
from grace.index.updates.state import UpdateState, touched_by
from grace.index.updates.update import full_message, read_update

MOST_HELD = 0.1
"""The longest time for which the lock may be held, as a share of the processor time that an update
takes. It was 0.2 and more when protobuf read updates, and Python kept weights in a dictionary."""


def longest_held(work: Callable[[], None]) -> float:
    """Return the most processor time that `work` took while no other thread had a turn, as a share
    of all that it took."""
    clock = pthread_getcpuclockid(threading.get_ident())
    longest, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        last = clock_gettime(clock)
        while not ended.is_set():
            now = clock_gettime(clock)
            longest, last = max(longest, now - last), now

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = thread_time()
    work()
    took = thread_time() - begin
    ended.set()
    watcher.join()
    return longest / took


@pytest.mark.parametrize(("stops", "weights"), [(3_000_017, 0), (0, 2_000_003)])
def test_other_threads_run_while_a_large_update_is_carried_out(
    tmp_path: Path, stops: int, weights: int
) -> None:
    """On a busy machine the other thread may miss a turn by chance, but not each time."""
    rng = np.random.default_rng(7)
    stopped, weighted = rng.permutation(2**40 + np.arange(stops)), 2**40 + np.arange(weights)
    message = bytes(
        full_message(1, {"ad": stopped}, weighted, rng.random(weights).astype(np.float32))
    )
    log = UpdateLog(tmp_path, lambda message: None)

    def carry_out() -> None:
        state, update = UpdateState(), read_update(message)
        log.append([message])
        state.apply(update)
        touched_by([update])
        log.rewrite(state.full_messages())

    assert any(longest_held(carry_out) < MOST_HELD for _ in range(5))
    log.close()
