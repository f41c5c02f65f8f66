"""Faults that a test switches on and off in a running server, by files in a shared folder.

STAGE.closed   the stage waits while this file exists
warm.closed    batches of a warm-up, which no call waits for, wait in the first stage
STAGE.raises   the stage raises an exception with the file's text
STAGE.dies     the stage raises SystemExit with the file's text
loop.closed    after a SIGUSR1, the event loop stands still while this file exists
batches.jsonl  the request ids of each batch that a stage was given, warm-up included
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Concatenate, ParamSpec, TypeVar

from grace.server.messages import PendingRequest, StageName
from grace.server.stages.stages import Stages

Disturb = Callable[[StageName, Sequence[PendingRequest]], None]
Batch = TypeVar("Batch")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")

LOOK_AGAIN_SECONDS = 0.001


class StageFaultError(RuntimeError):
    """Raised by a stage with the fault `raises`."""


@dataclass(frozen=True)
class Faults:
    folder: Path

    def closed(self, stage: StageName) -> AbstractContextManager[None]:
        """Inside, batches that reach the stage wait in it."""
        return self._switch(stage, "closed")

    def warm_up_closed(self) -> AbstractContextManager[None]:
        """Inside, warm-ups wait in their next batch, and calls do not."""
        return self._switch("warm", "closed")

    def raises(self, stage: StageName, text: str) -> AbstractContextManager[None]:
        return self._switch(stage, "raises", text)

    def dies(self, stage: StageName, text: str) -> AbstractContextManager[None]:
        return self._switch(stage, "dies", text)

    @contextmanager
    def loop_closed(self, server: int) -> Iterator[None]:
        """Inside, the event loop of the server with this process id stands still."""
        with self._switch("loop", "closed"):
            os.kill(server, signal.SIGUSR1)
            yield

    def stop_loop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Called in the server, on its event loop: the handler of SIGUSR1."""
        while self._path("loop", "closed").exists():
            time.sleep(LOOK_AGAIN_SECONDS)

    def forget(self) -> None:
        """Forget the batches until now; the server must be idle."""
        (self.folder / "batches.jsonl").unlink(missing_ok=True)

    def batches(self, stage: StageName) -> list[list[str]]:
        """Return the request ids of each batch that the stage was given."""
        path = self.folder / "batches.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = map(json.loads, lines)
        return [entry["requests"] for entry in entries if entry["stage"] == stage]

    def reached(self, stage: StageName) -> set[str]:
        """Return the ids of all requests that the stage was given."""
        return {request for batch in self.batches(stage) for request in batch}

    def disturb(self, stage: StageName, requests: Sequence[PendingRequest]) -> None:
        """Called in the server, before the stage does its work."""
        entry = {"stage": stage, "requests": [each.retrieval.request_id for each in requests]}
        with (self.folder / "batches.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        while self._path(stage, "closed").exists():
            time.sleep(LOOK_AGAIN_SECONDS)
        is_warm_up = all(each.completion is None for each in requests)
        while stage == "input" and is_warm_up and self._path("warm", "closed").exists():
            time.sleep(LOOK_AGAIN_SECONDS)
        if (text := self._text(stage, "raises")) is not None:
            raise StageFaultError(text)
        if (text := self._text(stage, "dies")) is not None:
            raise SystemExit(text)

    @contextmanager
    def _switch(self, stage: str, fault: str, text: str = "") -> Iterator[None]:
        path = self._path(stage, fault)
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
        try:
            yield
        finally:
            path.unlink()

    def _text(self, stage: StageName, fault: str) -> str | None:
        try:
            return self._path(stage, fault).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _path(self, stage: str, fault: str) -> Path:
        return self.folder / f"{stage}.{fault}"


def disturbed(stages: Stages, disturb: Disturb) -> Stages:
    """Return the stages, each of which calls `disturb` before it works: it may wait or raise."""
    return Stages(
        input=_disturbed("input", stages.input, disturb, lambda batch: batch.requests),
        features=_disturbed("features", stages.features, disturb, lambda batch: batch.requests),
        generate=_disturbed("generate", stages.generate, disturb, lambda b: b.input.requests),
        post=_disturbed("post", stages.post, disturb, lambda batch: batch.input.requests),
    )


def _disturbed(
    name: StageName,
    stage: Callable[Concatenate[Batch, Rest], Result],
    disturb: Disturb,
    requests_of: Callable[[Batch], Sequence[PendingRequest]],
) -> Callable[Concatenate[Batch, Rest], Result]:
    def run(batch: Batch, /, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        disturb(name, requests_of(batch))
        return stage(batch, *rest, **named)

    return run
