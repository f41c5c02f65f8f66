"""The pin outlasts restarts and kills, and a damaged file is never read as a pin."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grace.configs.errors import ConfigError
from grace.server.reload.decision import Pin
from grace.server.reload.pin_file import NAME, NEW, PinFile
from support.killed import deaths_of

PIN, OTHER = Pin(7, 12), Pin(18_446_744_073_709_551_614, 18_446_744_073_709_551_615)


def test_a_pin_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = PinFile(tmp_path / "made" / "by the first pin")
    assert file.read() is None
    for pin in (PIN, OTHER, None, None, PIN):
        file.write(pin)
        assert PinFile(file.path.parent).read() == pin


def test_only_its_owner_may_read_the_pin(tmp_path: Path) -> None:
    state, umask = tmp_path / "made" / "state", os.umask(0)
    try:
        for pin in (PIN, OTHER):
            PinFile(state).write(pin)
            (state / NEW).touch(0o666)  # of a server that was killed
            assert state.stat().st_mode & 0o777 == 0o700
            assert (state / NAME).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


def test_any_damage_is_refused_with_file_and_remedy(tmp_path: Path) -> None:
    file = PinFile(tmp_path)
    file.write(PIN)
    whole = file.path.read_bytes()
    flipped = (
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for place in range(len(whole))
    )
    cut = (whole[:size] for size in range(len(whole)))
    others = (b"[]", b"7", b"\xff", b'{"version": 7}', b"[" * 4000, whole * 2, whole + b" ")
    for content in (*flipped, *cut, *others):
        file.path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            file.read()
        assert str(caught.value).startswith(f"state_dir: {file.path}: is damaged; ")
        assert "remove it to follow CURRENT" in str(caught.value)


@pytest.mark.parametrize(("version", "until_above"), [(0, 3), (-1, 3), (7, 6), (1, 2**64)])
def test_impossible_versions_are_damage(tmp_path: Path, version: int, until_above: int) -> None:
    file = PinFile(tmp_path)
    file.write(Pin(version, until_above))
    with pytest.raises(ConfigError, match="is damaged"):
        file.read()


@pytest.mark.parametrize("become", [Path.mkdir, os.mkfifo])
def test_only_a_regular_file_is_read(tmp_path: Path, become: Callable[[Path], None]) -> None:
    become(tmp_path / NAME)
    with pytest.raises(ConfigError, match=r"pin\.json: cannot be read: not a regular file; "):
        PinFile(tmp_path).read()


@pytest.mark.subprocess
@pytest.mark.parametrize(("before", "after"), [(None, PIN), (PIN, OTHER), (OTHER, None)])
def test_a_server_killed_at_any_step_leaves_the_old_pin_or_the_new(
    tmp_path: Path, before: Pin | None, after: Pin | None
) -> None:
    """A half-written file of an earlier server makes no difference."""
    seen: list[Pin | None] = []

    def prepare() -> PinFile:
        file = PinFile(tmp_path)
        file.write(before)
        (tmp_path / NEW).write_bytes(b"half")
        return file

    def check(file: PinFile) -> None:
        seen.append(file.read())
        file.write(PIN)
        assert file.read() == PIN

    assert deaths_of(prepare, lambda file: file.write(after), check) >= 2
    assert (seen[0], seen[-1]) == (before, after)
    assert all(each in (before, after) for each in seen)
