"""Who works under which name in a server, as the kernel and so `top -H` tells it."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from grace.server.observe.thread_names import name_this_thread
from support.front_ends import FRONT_ENDS, WHERE
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

STAGES = ("grace-input", "grace-features", "grace-generate", "grace-post")
OTHERS = ("grace-loop", "grace-log", "grace-metrics")


def names_of(pid: int) -> Counter[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return Counter((task / "comm").read_text().strip() for task in tasks)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.subprocess
@pytest.mark.parametrize("front_ends", FRONT_ENDS, ids=WHERE)
def test_every_thread_that_matters_has_its_name(
    serving_files: ServingFiles, front_ends: int
) -> None:
    config = serving_files.write_config(
        f"names{front_ends}.yaml", listen={"front_ends": front_ends}, threads={"post": 3}
    )
    with ServerProcess(config) as server:
        caller = Caller(server.address)
        assert caller.call(message(serving_files.requests[0])).response.ad_ids
        caller.close()
        names = names_of(server.pid)
        expected = {**dict.fromkeys((*STAGES, *OTHERS), 1), "grace-match": 2}  # beside post itself
        assert {name: names[name] for name in expected} == expected, names
        main = Path(f"/proc/{server.pid}/comm").read_text().strip()
        assert main == "grace-loop"
        relays = children_of(server.pid)
        assert [names_of(relay)["grace-relay"] for relay in relays] == [1] * front_ends


def test_a_name_is_the_thread_s_own() -> None:
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
