"""The names of a server's threads, as the kernel and so `top -H` shows them."""

from collections import Counter
from pathlib import Path

import pytest

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
def test_every_thread_that_matters_has_its_name(healthy_server: ServerProcess) -> None:
    pid = healthy_server.pid
    names = names_of(pid)
    expected = dict.fromkeys((*STAGES, *OTHERS), 1)
    assert {name: names[name] for name in expected} == expected, names
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "grace-loop"
    relays = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    relay_names = [names_of(int(relay))["grace-relay"] for relay in relays]
    assert relay_names == [1] * status(healthy_server).front_ends
