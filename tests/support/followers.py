"""A running `grace admin follow`."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.command import GRACE, plain_environment
from support.forked import forked
from support.server_process import wait_until


class Follower:
    """A running `grace admin follow`, and what it has printed."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid, self._output = pid, output

    @property
    def printed(self) -> list[dict[str, str]]:
        *lines, _ = self._output.read_text().split("\n")  # the last one may be under way
        return [json.loads(each) for each in lines]

    @property
    def faults(self) -> list[str]:
        return [each["fault"] for each in self.printed if "fault" in each]

    def wait_fault(self, count: int, fault: str) -> None:
        wait_until(lambda: len(self.faults) >= count, fault)
        assert fault in self.faults[-1], self.faults
        assert len(self.faults) == count, self.faults

    def wait_done(self, text: str) -> None:
        wait_until(lambda: any(text in each.get("done", "") for each in self.printed), text)


@contextmanager
def following(
    place: Path, address: str, *options: str | Path, ended_by: int = signal.SIGTERM
) -> Iterator[Follower]:
    """Follow a file or a folder, and end that with a signal."""
    command = [str(GRACE), "admin", "follow", str(place), "--address", address, "--json"]
    output = place.with_name("printed")
    with output.open("w") as stdout:
        process = forked(
            [*command, *map(str, options)], plain_environment(), stdout=stdout.fileno()
        )
    try:
        yield Follower(process.pid, output)
        process.send_signal(ended_by)
        assert process.wait(30) == -ended_by
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()
