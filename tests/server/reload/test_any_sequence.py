"""In any order of publishes, loads, rollbacks, updates and kills, a server serves what is plain.

Hypothesis draws the steps. `Plain` has the rules that say what the server serves after each.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import sleep
from typing import Any

import grpc
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from grace.model.checkpoints.checkpoint import checkpoint_id
from grace.model.checkpoints.init import write_random
from grace.server.engine.serving_pair import ServingPair
from support.live_snapshots import LiveRoot
from support.operators import operator_of
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import answer, load_cpu_pair, replies_of, request_batch, stop
from support.update_calls import Updater

pytestmark = pytest.mark.subprocess

MOST_VERSIONS = 6


class RefusedError(Exception):
    """The plain server refuses a call, with the reason in `args`."""


@dataclass
class Plain:
    """What a server serves.

    bad     versions that cannot be loaded
    pin     the pinned version, and the version that CURRENT must exceed to end the pin
    failed  the version whose failed load the server reports; 0: none
    loads   how many loads succeeded and failed since the process began
    """

    versions: list[int] = field(default_factory=lambda: [1, 2])
    bad: set[int] = field(default_factory=set)
    current: int = 1
    served: int = 1
    checkpoint: int = 0
    pin: tuple[int, int] | None = None
    failed: int = 0
    loads: tuple[int, int] = (1, 0)
    stopped: set[int] = field(default_factory=set)
    sequence: int = 0

    @property
    def pin_is_passed(self) -> bool:
        return self.pin is not None and self.current > self.pin[1]

    @property
    def can_start(self) -> bool:
        return self.pin is not None or self.current not in self.bad

    def serve(self, version: int, checkpoint: int | None = None) -> bool:
        """Return whether the server serves something else now."""
        ok, failed = self.loads
        if version in self.bad:
            self.failed, self.loads = version, (ok, failed + 1)
            raise RefusedError("load_failed")
        wanted = version, self.checkpoint if checkpoint is None else checkpoint
        changed = wanted != (self.served, self.checkpoint)
        self.served, self.checkpoint = wanted
        self.loads = ok + changed, failed
        if self.failed != self.current or version == self.current:
            self.failed = 0
        if self.pin_is_passed and self.served == self.current:
            self.pin = None
        return changed

    def publish(self, version: int) -> None:
        self.current = version
        wanted = version if self.pin is None or self.pin_is_passed else self.pin[0]
        if wanted != self.served:
            with suppress(RefusedError):  # the old version serves on
                self.serve(wanted)
        elif version == self.served:
            self.failed = 0

    def load(self, version: int, checkpoint: int | None) -> bool:
        pin = None if self.pin_is_passed else self.pin
        if version and pin is not None and version != pin[0]:
            raise RefusedError("load_refused")
        named = self.current if pin is None else pin[0]
        return self.serve(version or named, checkpoint)

    def roll_back(self, version: int) -> int:
        """Return the version that was served before."""
        before, pin = self.served, self.pin
        if pin is not None and version == pin[0]:
            return before  # once more, as a retry does
        older = [each for each in self.versions if each < self.served]
        if version == 0 and older:
            version = older[-1]
        elif pin is not None and pin[1] > self.served:
            older = [each for each in self.versions if each < pin[1]]
        if version not in older:
            raise RefusedError("load_refused")
        self.serve(version)
        self.pin = version, max(before, self.current, 0 if pin is None else pin[1])
        return before

    def unpin(self) -> int:
        """Return the version that was pinned."""
        before, self.pin = self.pin, None
        if self.current != self.served:
            self.serve(self.current)
        self.failed = 0
        return 0 if before is None else before[0]

    def restart(self) -> None:
        self.checkpoint, self.failed, self.loads = 0, 0, (1, 0)
        if self.pin is None or (self.pin_is_passed and self.current not in self.bad):
            self.served, self.pin = self.current, None
        else:
            self.served = self.pin[0]
            if self.pin_is_passed:
                self.failed, self.loads = self.current, (1, 1)


class Answers:
    """The plain answers to some requests, by what is served and stopped."""

    def __init__(self, files: ServingFiles, folder: Path) -> None:
        torch.set_num_threads(1)
        self.live, other = LiveRoot.write(folder, files), folder / "other"
        write_random(model_spec(), other, seed=7, dtype=torch.float32)
        self.checkpoints = files.checkpoint, other
        self.requests = self.live.requests[:3]
        self.pairs: dict[tuple[int, int], ServingPair] = {}

    def ads(self, like: int, checkpoint: int, stopped: set[int]) -> list[list[int]]:
        key = like, checkpoint
        if key not in self.pairs:
            folder = self.live.folder(like)
            self.pairs[key] = load_cpu_pair(folder, self.checkpoints[checkpoint])
        stop(self.pairs[key], stopped)
        found = []
        for request in self.requests:
            batch = request_batch(self.pairs[key], [request], 1, str(request["profile"]))
            found += [list(reply.ad_ids) for reply in replies_of(answer(batch)).values()]
        return found


class Machine(RuleBasedStateMachine):
    """A real server, which must do as the plain one."""

    def __init__(self, files: ServingFiles, answers: Answers) -> None:
        super().__init__()
        self.answers, self.plain = answers, Plain()
        self.some_ads = sorted({ad for ads in answers.ads(1, 0, set()) for ad in ads[:5]})
        self.like = {1: 1, 2: 2}  # the version that has the ads of a version
        self.folder = Path(mkdtemp(dir=files.folder))
        self.live = LiveRoot.write(self.folder, files)
        state = str(self.folder / "state")
        listen = {"linger_seconds": 0.0}
        name = f"{self.folder.name}.yaml"
        self.config = self.live.write_config(name, state_dir=state, listen=listen)
        self.start()

    def start(self) -> None:
        self.end = ExitStack()
        self.server = self.end.enter_context(ServerProcess(self.config))
        self.operator = self.end.enter_context(operator_of(self.server))
        self.updater = self.end.enter_context(Updater(self.server))
        self.caller = Caller(self.server.address)
        self.end.callback(self.caller.close)

    def teardown(self) -> None:
        self.end.close()
        shutil.rmtree(self.folder)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.published(data.draw(st.sampled_from(self.plain.versions)))

    @precondition(lambda self: len(self.plain.versions) < MOST_VERSIONS)
    @rule(like=st.sampled_from([1, 2]), bad=st.booleans())
    def publish_another(self, like: int, bad: bool) -> None:
        version = self.live.add(like)
        self.plain.versions.append(version)
        self.like[version] = like
        if bad:
            self.plain.bad.add(version)
            (self.live.folder(version) / "ad_weight.npy").unlink()
        self.published(version)

    def published(self, version: int) -> None:
        self.live.publish(version)
        self.plain.publish(version)
        self.check()

    @rule(data=st.data(), checkpoint=st.sampled_from([None, None, 0, 1]))
    def load(self, data: st.DataObject, checkpoint: int | None) -> None:
        version = data.draw(st.sampled_from([0, *self.plain.versions]))
        folder = "" if checkpoint is None else self.answers.checkpoints[checkpoint]
        self.both(
            lambda: self.plain.load(version, checkpoint),
            lambda: self.operator.load(version, folder).changed,
        )

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.rolled_back(data.draw(st.sampled_from([0, *self.plain.versions])))

    def rolled_back(self, version: int) -> None:
        self.both(
            lambda: self.plain.roll_back(version),
            lambda: self.operator.roll_back(version).previous_version,
        )

    @rule()
    def unpin(self) -> None:
        self.both(self.plain.unpin, lambda: self.operator.unpin().previous_pin)

    @rule(data=st.data(), what=st.sampled_from(["stop", "resume", "full"]))
    def update(self, data: st.DataObject, what: str) -> None:
        plain, ads = self.plain, data.draw(st.sets(st.sampled_from(self.some_ads), max_size=4))
        plain.sequence += 1
        if what == "full":
            plain.stopped = ads
            self.updater.apply(plain.sequence, full=True, stop={"ad": ads})
        else:
            plain.stopped = plain.stopped | ads if what == "stop" else plain.stopped - ads
            self.updater.apply(plain.sequence, **{what: {"ad": ads}})
        self.check()

    @precondition(lambda self: self.plain.can_start)
    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        if kills:
            self.server.kill()
        else:
            self.server.terminate()
            assert self.server.wait() == 0
        self.end.close()
        self.start()
        self.plain.restart()
        self.check()

    def both(self, plainly: Callable[[], int], really: Callable[[], int]) -> None:
        """Require the same result, or the same refusal."""
        try:
            expected: int | str = plainly()
        except RefusedError as refused:
            expected = str(refused)
        try:
            found: int | str = really()
        except grpc.RpcError as error:
            given: Any = error
            found = str(dict(given.trailing_metadata())["grace-reason"])
        assert found == expected
        self.check()

    def check(self) -> None:
        """Require that status, metrics and answers are the plain ones."""
        plain, server = self.plain, self.server
        pin = plain.pin or (0, 0)
        expected = (plain.served, plain.current, *pin, plain.failed, plain.loads, plain.sequence)

        def seen() -> tuple[object, ...]:
            status, metrics = self.operator.status(), server.metrics()
            load, name = status.load, "grace_snapshot_load_total"
            loads = (metrics[name, frozenset({("result", each)})] for each in ("ok", "failed"))
            pinned = (load.pinned_version, load.pinned_until_above)
            versions = (status.snapshot.version, load.current_version)
            return (*versions, *pinned, load.failed_version, tuple(loads), status.updates.sequence)

        server.wait_until(lambda: seen() == expected, f"it is {expected}, not {seen()}")
        assert server.metric("grace_snapshot_version") == plain.served
        assert server.metric("grace_pinned") == (plain.pin is not None)
        checkpoint = checkpoint_id(self.answers.checkpoints[plain.checkpoint])
        expected_ads = self.answers.ads(self.like[plain.served], plain.checkpoint, plain.stopped)
        for request, ads in zip(self.answers.requests, expected_ads, strict=True):
            reply = self.caller.call(message(request)).response
            assert (reply.snapshot_version, reply.checkpoint) == (plain.served, checkpoint)
            assert list(reply.ad_ids) == ads


def test_a_server_serves_what_is_plain_in_any_order_of_steps(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    answers = Answers(serving_files, tmp_path)
    run_state_machine_as_test(
        lambda: Machine(serving_files, answers),  # type: ignore[arg-type]
        settings=settings(max_examples=3, stateful_step_count=18),
    )


def test_a_pin_holds_over_starts_and_ends_with_a_newer_version_that_loads(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    """These steps in this order, however many sequences are drawn."""
    machine = Machine(serving_files, Answers(serving_files, tmp_path))
    try:
        machine.published(2)
        machine.publish_another(1, bad=True)
        machine.rolled_back(1)
        machine.published(2)
        machine.published(3)  # which the pin outlasts
        machine.restart(kills=False)
        machine.publish_another(1, bad=True)
        sleep(0.5)  # time for some looks, none of which tries again
        machine.check()
        machine.restart(kills=True)
        machine.publish_another(2, bad=False)
        machine.restart(kills=True)
    finally:
        machine.teardown()
