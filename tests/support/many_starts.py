"""Run `grace serve` many times in one process: most of a start is imports.

    with ManyStarts() as starts:
        started = starts.start("--config", config)

When run as a program, this file reads one line of arguments for each start, and writes how the
start ended.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from support.command import plain_environment
from support.forked import forked

END = "many_starts_end"


@dataclass(frozen=True)
class Started:
    """One run of the command.

    code            its exit code
    lines           what it wrote to stderr, without the log
    events          of the log
    switch_seconds  the interpreter's switch interval afterwards; None if the process has ended, as
                    it does with a server that got ready
    """

    code: int
    lines: list[str]
    events: list[str]
    switch_seconds: float | None


class ManyStarts:
    def __enter__(self) -> Self:
        theirs, ours = os.pipe()
        self._orders = os.fdopen(ours, "w", encoding="utf-8")
        self._process = forked([__file__], plain_environment(), theirs)
        os.close(theirs)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self._process.wait()
        self._process.stderr.close()
        self._orders.close()
        return code

    def start(self, *arguments: object, ready: Callable[[str], None] | None = None) -> Started:
        """Run `grace serve` to its end. If it gets ready, call `ready` with its address, then stop
        it with SIGTERM."""
        self._orders.write(json.dumps(list(map(str, arguments))) + "\n")
        self._orders.flush()
        lines: list[str] = []
        log: dict[str, Any] = {}
        for line in self._process.stderr:
            if not line.startswith("{"):
                lines.append(line.removesuffix("\n"))
                continue
            entry = json.loads(line)
            if entry["event"] == END:
                return Started(entry["code"], lines, list(log), entry["switch_seconds"])
            log[entry["event"]] = entry
            if entry["event"] == "ready":
                assert ready is not None, "the server got ready, though it has a fault"
                try:
                    ready(log["listening"]["retrieve"])
                finally:
                    self._process.send_signal(signal.SIGTERM)
        code = self._ended()
        self.__enter__()
        return Started(code, lines, list(log), None)


def main() -> None:
    from grace.cli.main import app
    from grace.server.observe.logs import flush_logs

    for line in sys.stdin:
        code = app(["serve", *json.loads(line)], standalone_mode=False)
        flush_logs()
        end = {"event": END, "code": code, "switch_seconds": sys.getswitchinterval()}
        print(json.dumps(end), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
