"""The names of a server's threads, as the kernel and so `top -H` shows them."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from grace.server.observe.thread_names import name_this_thread
from support.health import status
from support.server_process import ServerProcess

STAGES = ("grace-input", "grace-features", "grace-generate", "grace-post")
OTHERS = (
    "grace-loop",
    "grace-log",
    "grace-metrics",
    "grace-match",
)  # a match thread less than post


def names_of(pid: int) -> Counter[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return Counter((task / "comm").read_text().strip() for task in tasks)


@pytest.mark.subprocess
def test_every_thread_that_matters_has_its_name(either_server: ServerProcess) -> None:
    pid = either_server.pid
    names = names_of(pid)
    expected = dict.fromkeys((*STAGES, *OTHERS), 1)
    assert {name: names[name] for name in expected} == expected, names
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "grace-loop"
    relays = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    relay_names = [names_of(int(relay))["grace-relay"] for relay in relays]
    assert relay_names == [1] * status(either_server).front_ends


def test_a_name_belongs_to_one_thread() -> None:
    seen: list[str] = []

    def own_name() -> str:
        return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()

    def work() -> None:
        name_this_thread("grace-fifteen-b")
        seen.append(own_name())

    before = own_name()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["grace-fifteen-b"]
    assert own_name() == before != "grace-fifteen-b"


def test_a_name_that_the_kernel_would_cut_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="grace-sixteen-by"):
        name_this_thread("grace-sixteen-by")
