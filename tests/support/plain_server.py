"""A real server that is operated in any order, and the plain rules for what it must do."""

import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import sleep
from typing import Any

import grpc
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from grace.index.storage.folder import version_name
from grace.model.checkpoints.checkpoint import checkpoint_id
from grace.model.checkpoints.init import write_random
from grace.server.engine.serving_pair import ServingPair
from support.live_snapshots import LiveRoot
from support.operators import operator_of
from support.retrieve_calls import Caller, Outcome, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import answer, load_cpu_pair, replies_of, request_batch, stop
from support.update_calls import Updater

MOST_VERSIONS = 6
JUNK = b"junk\n"


class RefusedError(Exception):
    """The plain server refuses a call, with the reason in `args`."""


@dataclass
class Plain:
    """What a server serves.

    bad       versions that cannot be loaded
    current   the version that CURRENT named when it was last read
    readable  whether CURRENT can be read now
    pin       the pinned version, and the version that CURRENT must exceed to end the pin
    failed    the version whose failed load the server reports; 0: none
    loads     how many loads succeeded and failed since the process began
    """

    versions: list[int] = field(default_factory=lambda: [1, 2])
    bad: set[int] = field(default_factory=set)
    current: int = 1
    readable: bool = True
    served: int = 1
    checkpoint: int = 0
    pin: tuple[int, int] | None = None
    failed: int = 0
    loads: tuple[int, int] = (1, 0)
    stopped: frozenset[int] = frozenset()
    sequence: int = 0

    @property
    def pin_is_passed(self) -> bool:
        return self.pin is not None and self.current > self.pin[1]

    @property
    def can_start(self) -> bool:
        return self.pin is not None or (self.readable and self.current not in self.bad)

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
        self.current, self.readable = version, True
        wanted = version if self.pin is None or self.pin_is_passed else self.pin[0]
        if wanted != self.served:
            with suppress(RefusedError):  # the old version serves on
                self.serve(wanted)
        elif version == self.served:
            self.failed = 0

    def lose_current(self) -> None:
        ok, failed = self.loads
        self.readable, self.loads = False, (ok, failed + 1)

    def look(self) -> None:
        if not self.readable:
            raise RefusedError("load_failed")

    def load(self, version: int, checkpoint: int | None) -> bool:
        if not version:
            self.look()
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
        self.look()
        before, self.pin = self.pin, None
        if self.current != self.served:
            self.serve(self.current)
        self.failed = 0
        return 0 if before is None else before[0]

    def restart(self) -> None:
        self.checkpoint, self.failed, self.loads = 0, 0, (1, 0)
        if not self.readable:
            assert self.pin is not None
            self.served, self.current, self.loads = self.pin[0], 0, (1, 1)
        elif self.pin is None or (self.pin_is_passed and self.current not in self.bad):
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
        self.ids = [checkpoint_id(each) for each in self.checkpoints]
        self.requests = self.live.requests[:3]
        self._pairs: dict[tuple[int, int], ServingPair] = {}
        self._ads: dict[tuple[int, int, frozenset[int]], list[list[int]]] = {}

    def ads(self, like: int, checkpoint: int, stopped: frozenset[int]) -> list[list[int]]:
        """Return the ads of each request."""
        key, pair_key = (like, checkpoint, stopped), (like, checkpoint)
        if pair_key not in self._pairs:
            folder, checkpoint_folder = self.live.folder(like), self.checkpoints[checkpoint]
            self._pairs[pair_key] = load_cpu_pair(folder, checkpoint_folder)
        if key not in self._ads:
            pair = self._pairs[pair_key]
            stop(pair, stopped)
            self._ads[key] = [
                list(reply.ad_ids)
                for each in self.requests
                for reply in replies_of(
                    answer(request_batch(pair, [each], 1, str(each["profile"])))
                ).values()
            ]
        return self._ads[key]


@dataclass(frozen=True)
class Seen:
    """A call's outcome, and which updates were begun and acknowledged before and after it."""

    request: int
    before: tuple[int, frozenset[int]]
    after: tuple[int, frozenset[int]]
    outcome: Outcome


class Machine(RuleBasedStateMachine):
    """A real server, which must do as the plain one, while a client calls it all the time."""

    def __init__(self, files: ServingFiles, answers: Answers, front_ends: int = 0) -> None:
        super().__init__()
        self.answers, self.plain = answers, Plain()
        everything = answers.ads(1, 0, frozenset())
        self.some_ads = sorted({ad for ads in everything for ad in ads[:5]})
        self.like = {1: 1, 2: 2}  # the version that has the ads of a version
        self.folder = Path(mkdtemp(dir=files.folder))
        self.live = LiveRoot.write(self.folder, files)
        self.config = self.live.write_config(
            f"{self.folder.name}.yaml",
            state_dir=str(self.folder / "state"),
            listen={"linger_seconds": 0.0, "front_ends": front_ends},
        )
        self.update_steps = 0  # two for each update: begun, and acknowledged
        self.start()

    def start(self) -> None:
        self.end = ExitStack()
        self.server = self.end.enter_context(ServerProcess(self.config))
        self.operator = self.end.enter_context(operator_of(self.server))
        self.updater = self.end.enter_context(Updater(self.server))
        self.seen: list[Seen] = []
        self.calls = threading.Event()
        self.calls.set()
        self.client = threading.Thread(target=self.call_on, args=(self.server.address,))
        self.client.start()
        self.end.callback(self.stop_calls)

    def stop_calls(self) -> None:
        self.calls.clear()
        self.client.join()

    def call_on(self, address: str) -> None:
        caller, number = Caller(address), 0
        while self.calls.is_set():
            number = (number + 1) % len(self.answers.requests)
            before = self.update_steps, self.plain.stopped
            outcome = caller.call(message(self.answers.requests[number]))
            after = self.update_steps, self.plain.stopped
            self.seen.append(Seen(number, before, after, outcome))
            sleep(0.005)
        caller.close()

    def teardown(self) -> None:
        self.end.close()
        shutil.rmtree(self.folder)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.published(data.draw(st.sampled_from(self.plain.versions)))

    @precondition(lambda self: len(self.plain.versions) < MOST_VERSIONS)
    @rule(like=st.sampled_from([1, 2]), bad=st.booleans())
    def publish_another(self, like: int, bad: bool) -> None:
        self.published_another(
            like, (lambda folder: (folder / "ad_weight.npy").unlink()) if bad else None
        )

    def published_another(self, like: int, damage: Callable[[Path], object] | None = None) -> int:
        version = self.live.add(like)
        self.plain.versions.append(version)
        self.like[version] = like
        if damage is not None:
            self.plain.bad.add(version)
            damage(self.live.folder(version))
        self.published(version)
        return version

    def published(self, version: int) -> None:
        if self.live.folder(version).exists():
            self.live.publish(version)
        else:  # `grace publish` refuses it
            self.write_current(f"{version_name(version)}\n".encode())
        self.plain.publish(version)
        self.check()

    @precondition(lambda self: self.plain.readable)
    @rule(content=st.sampled_from([None, JUNK]))
    def lose_current(self, content: bytes | None) -> None:
        self.current_becomes(content)

    def current_becomes(self, content: bytes | None) -> None:
        """Let CURRENT go, or hold junk."""
        if content is None:
            (self.live.root / "CURRENT").unlink()
        else:
            self.write_current(content)
        self.plain.lose_current()
        self.check()

    def write_current(self, content: bytes) -> None:
        """Replace CURRENT at once: a look in the middle of a write would find something else."""
        new = self.live.root / "new"
        new.write_bytes(content)
        new.rename(self.live.root / "CURRENT")

    @rule(data=st.data(), checkpoint=st.sampled_from([None, None, 0, 1]))
    def load(self, data: st.DataObject, checkpoint: int | None) -> None:
        self.loaded(data.draw(st.sampled_from([0, *self.plain.versions])), checkpoint)

    def loaded(self, version: int = 0, checkpoint: int | None = None) -> str:
        folder = "" if checkpoint is None else self.answers.checkpoints[checkpoint]
        return self.both(
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
        self.updated(what, data.draw(st.frozensets(st.sampled_from(self.some_ads), max_size=4)))

    def updated(self, what: str, ads: frozenset[int]) -> None:
        plain, before = self.plain, self.plain.stopped
        changes = {"full": ads, "stop": before | ads, "resume": before - ads}
        self.update_steps += 1
        plain.sequence += 1
        plain.stopped = before & changes[what]  # what is stopped in any case
        given = {"full": True, "stop": {"ad": ads}} if what == "full" else {what: {"ad": ads}}
        self.updater.apply(plain.sequence, **given)
        plain.stopped = changes[what]
        self.update_steps += 1
        self.check()

    @precondition(lambda self: self.plain.can_start)
    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        self.stop_calls()
        if kills:
            self.server.kill()
        else:
            self.server.terminate()
            assert self.server.wait() == 0
        self.end.close()
        self.start()
        self.plain.restart()
        self.check()

    def both(self, plainly: Callable[[], int], really: Callable[[], int]) -> str:
        """Require the same result, or the same refusal. Return the refusal's text."""
        text = ""
        try:
            expected: int | str = plainly()
        except RefusedError as refused:
            expected = str(refused)
        try:
            found: int | str = really()
        except grpc.RpcError as error:
            given: Any = error
            found, text = str(dict(given.trailing_metadata())["grace-reason"]), given.details()
        assert found == expected
        self.check()
        return text

    def check(self) -> None:
        """Require that status, metrics and answers are the plain ones."""
        plain, server = self.plain, self.server
        current, failed = (plain.current, plain.failed) if plain.readable else (0, 0)
        pin = plain.pin or (0, 0)
        expected = (plain.served, current, *pin, failed, plain.loads, plain.sequence)

        def reported() -> tuple[object, ...]:
            status, metrics = self.operator.status(), server.metrics()
            load, name = status.load, "grace_snapshot_load_total"
            loads = (metrics[name, frozenset({("result", each)})] for each in ("ok", "failed"))
            pinned = (load.pinned_version, load.pinned_until_above)
            versions = (status.snapshot.version, load.current_version)
            return (*versions, *pinned, load.failed_version, tuple(loads), status.updates.sequence)

        server.wait_until(lambda: reported() == expected, f"it is {expected}, not {reported()}")
        assert server.metric("grace_snapshot_version") == plain.served
        assert server.metric("grace_pinned") == (plain.pin is not None)
        assert bool(self.operator.status().load.fault) == (not plain.readable or failed != 0)
        count = len(self.seen)
        server.wait_until(lambda: len(self.seen) > count + 3, "each request has an answer since")
        seen = self.seen[:]
        del self.seen[: len(seen)]
        for each in seen:
            self.check_answer(each)
        latest = [each.outcome.response for each in seen[-3:]]
        served = plain.served, self.answers.ids[plain.checkpoint]
        assert {(each.snapshot_version, each.checkpoint) for each in latest} == {served}

    def check_answer(self, seen: Seen) -> None:
        """Require the plain answer of the version that it names, or at least no stopped ad."""
        reply, ids = seen.outcome.response, self.answers.ids
        like, checkpoint = self.like[reply.snapshot_version], ids.index(reply.checkpoint)
        (begun, stopped), after = seen.before, seen.after
        if (begun, stopped) == after and begun % 2 == 0:
            assert list(reply.ad_ids) == self.answers.ads(like, checkpoint, stopped)[seen.request]
        elif after[0] - begun < 4:  # too few steps to resume an ad and stop it again
            assert not (stopped & after[1]).intersection(reply.ad_ids)
