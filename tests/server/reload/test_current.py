"""Looks at CURRENT, on a thread of their own, and the decision which version to serve."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import GraceError, InputError
from grace.index.storage import Published, publish
from grace.server.errors import ServiceError
from grace.server.reload.current import Current
from grace.server.reload.decision import Pin, decide, pin_for
from support.forgery import make_version
from support.pipeline_cases import LONG


def word(error: GraceError | OSError) -> str:
    return f"worded: {error}"


def test_a_look_that_hangs_is_reported_once_and_the_loop_runs_on(tmp_path: Path) -> None:
    gate, begun, faults = threading.Event(), [], list[str]()

    def read(path: Path) -> Published:
        begun.append(path)
        assert gate.wait(LONG)
        return Published(7)

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read, look_seconds=0.05)
        watch = asyncio.ensure_future(current.look())
        while not current.fault:
            await asyncio.sleep(0.01)
        for _ in range(3):
            with pytest.raises(ServiceError) as caught:
                await current.look_now()
            assert caught.value.reason == "load_failed"
            assert caught.value.text == current.fault
        (fault,) = faults
        assert fault.startswith(f"snapshots: {tmp_path}: CURRENT could not be read within 0.05 s;")
        gate.set()
        await watch
        assert (current.seen, current.fault) == (Published(7), "")
        await current.look_now()
        assert len(begun) == 2, "no look began while one hung"

    asyncio.run(use())


def test_the_versions_of_a_root_that_hangs_are_not_waited_for(tmp_path: Path) -> None:
    """An operator's call that waited for them would delay every later one."""
    gate = threading.Event()

    def read(_: Path) -> Published:
        assert gate.wait(LONG)
        return Published(7)

    async def use() -> None:
        current = Current(tmp_path, word, lambda _: None, read, look_seconds=0.05)
        watch = asyncio.ensure_future(current.look())
        await asyncio.sleep(0)
        for listing in (current.versions(), current.require(7), current.older(0, 7, None)):
            with pytest.raises(ServiceError) as caught:
                await listing
            assert caught.value.reason == "load_failed"
            assert f"{tmp_path}: " in caught.value.text
            assert "could not be read within 0.05 s; check whether its file" in caught.value.text
        gate.set()
        await watch
        assert await current.versions() == ()

    asyncio.run(use())


def test_a_fault_is_reported_once_and_again_after_it_has_gone(tmp_path: Path) -> None:
    answers: list[Published | GraceError | OSError] = []
    faults: list[str] = []

    def read(_: Path) -> Published:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read)
        fault, good = InputError("no root"), Published(3)
        answers.extend([good, fault, fault, good, OSError(5, "Input/output error"), fault])
        seen = []
        for _ in range(6):
            await current.look()
            seen.append(bool(current.fault))
            assert current.seen == good, "the result of the last look that succeeded stays"
        assert seen == [False, True, True, False, True, True]
        assert len(faults) == 3

    asyncio.run(use())


def test_a_look_that_breaks_is_a_fault_and_the_next_one_follows(tmp_path: Path) -> None:
    """An exception here would end the task that follows CURRENT, and nobody would see it."""
    broken, faults = [True], list[str]()

    def read(_: Path) -> Published:
        if broken.pop():
            raise MemoryError("of a secret")
        return Published(3)

    async def use() -> None:
        current = Current(tmp_path, word, faults.append, read)
        await current.look()
        assert faults == ["internal error (MemoryError); the server's log has its place"]
        broken.append(False)
        await current.look_now()
        assert (current.seen, current.fault) == (Published(3), "")

    asyncio.run(use())


def test_it_reads_what_is_published_and_which_versions_there_are(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for version in (1, 2):
        make_version(root, version)

    async def use() -> None:
        faults: list[str] = []
        current = Current(root, word, faults.append)
        await current.look()
        missing = "missing; make it anew with `grace publish ROOT VERSION`"
        assert faults == [current.fault] == [f"worded: {root}/CURRENT: {missing}"]
        marks = set()
        for version in (1, 2, 2):
            publish(root, version)
            await current.look_now()
            assert current.seen is not None
            assert current.seen.version == version
            marks.add(current.seen.mark)
        assert len(marks) == 3, "publishing a version again changes the mark"
        assert (len(faults), current.fault) == (1, "")
        assert await current.versions() == (1, 2)
        fixed = Current(root / f"{1:020d}", word, pytest.fail)
        await fixed.look()
        assert fixed.seen == Published(1), "a path of one version never changes"
        assert await fixed.versions() == (1, 2)

    asyncio.run(use())


NOW, LATER = (7, 1), (8, 2)  # marks of two publishes
VERSIONS = st.integers(1, 9)
SEEN = st.builds(Published, st.none() | VERSIONS, st.sampled_from([NOW, LATER]))
PINS = st.builds(lambda version, more: Pin(version, version + more), VERSIONS, st.integers(0, 5))


def test_a_server_follows_current_to_newer_and_to_older_versions() -> None:
    for version in (3, 11):
        seen = Published(version, LATER)
        assert decide(seen, Published(7, NOW), None, served=7) == version
    assert decide(Published(7, LATER), Published(7, NOW), None, served=7) is None
    assert decide(Published(None), Published(7, NOW), None, served=7) is None


def test_a_version_that_failed_is_tried_again_after_a_publish_or_on_request() -> None:
    failed = Published(9, NOW)
    assert decide(failed, failed, None, served=7) is None
    assert decide(Published(9, LATER), failed, None, served=7) == 9
    assert decide(failed, None, None, served=7) == 9


def test_a_version_that_an_operator_has_loaded_stays_until_a_publish() -> None:
    current = Published(9, NOW)
    assert decide(current, current, None, served=5) is None
    assert decide(Published(9, LATER), current, None, served=5) == 9


def test_a_pin_holds_until_current_exceeds_the_version_that_was_rolled_back_from() -> None:
    pin = Pin(version=7, until_above=9)
    for version in (3, 7, 8, 9):
        assert decide(Published(version, LATER), None, pin, served=7) is None
    assert decide(Published(10, LATER), None, pin, served=7) == 10
    assert decide(Published(9, LATER), None, pin, served=None) == 7


@given(SEEN, st.none() | SEEN, st.none() | PINS, VERSIONS)
def test_what_is_loaded_is_pinned_or_published_and_nothing_is_loaded_twice(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int
) -> None:
    version = decide(seen, acted_on, pin, served)
    assert version is None or version != served
    if pin is not None and not pin.ends(seen):
        assert version in (None, pin.version)
    else:
        assert version in (None, seen.version)
    assert decide(seen, seen, pin, version or served) is None


@given(VERSIONS, VERSIONS, st.none() | SEEN, st.none() | PINS)
def test_what_current_names_already_does_not_end_a_new_pin(
    version: int, below: int, seen: Published | None, before: Pin | None
) -> None:
    pin = pin_for(version, version + below, seen, before)
    assert pin.version == version
    assert pin.until_above >= version + below
    assert seen is None or not pin.ends(seen)
    assert before is None or pin.until_above >= before.until_above
