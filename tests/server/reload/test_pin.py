"""The pin outlasts restarts and kills, and a damaged file is never read as a pin. The server
looks at CURRENT again after any fault."""

import asyncio
import os
from pathlib import Path

import pytest

from grace.configs.errors import ConfigError
from grace.index.storage import Published
from grace.server.reload.current import Current
from grace.server.reload.pin import NAME, NEW, Pin, PinFile
from support.killed import deaths_of

PIN, OTHER = Pin(7, 12), Pin(18_446_744_073_709_551_614, 18_446_744_073_709_551_615)


def test_a_pin_is_read_as_it_was_written_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    file, umask = PinFile(tmp_path / "made" / "by the first pin"), os.umask(0)
    try:
        assert file.read() is None
        for pin in (PIN, OTHER, None, None, PIN):
            file.write(pin)
            assert PinFile(file.path.parent).read() == pin
            (file.path.parent / NEW).touch(0o666)  # of a server that was killed
        assert file.path.parent.stat().st_mode & 0o777 == 0o700
        assert file.path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


def test_any_damage_is_refused_with_file_and_remedy(tmp_path: Path) -> None:
    file = PinFile(tmp_path)
    wrong = []
    for pin in (Pin(0, 3), Pin(-1, 3), Pin(7, 6), Pin(1, 2**64), PIN):
        file.write(pin)
        wrong.append(file.path.read_bytes())
    whole = wrong.pop()
    for place in range(len(whole)):
        wrong += [whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]]
    wrong += [b"[]", b"7", b"\xff", b'{"version": 7}', b"[" * 4000, whole * 2, whole + b" "]
    for content in wrong:
        file.path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            file.read()
        assert str(caught.value).startswith(f"state_dir: {file.path}: is damaged; ")
        assert "remove it to follow CURRENT" in str(caught.value)
    file.path.unlink()
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(ConfigError, match=r"pin\.json: cannot be read: not a regular file; "):
        file.read()


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


def test_a_look_that_breaks_is_a_fault_and_the_next_one_follows(tmp_path: Path) -> None:
    """An exception here would end the task that follows CURRENT, and nobody would see it."""
    broken, faults = [True], list[str]()

    def read(_: Path) -> Published:
        if broken.pop():
            raise MemoryError("of a secret")
        return Published(3)

    async def use() -> None:
        current = Current(tmp_path, str, faults.append, read)
        await current.look()
        assert faults == ["internal error (MemoryError); the server's log has its place"]
        broken.append(False)
        await current.look_now()
        assert (current.seen, current.fault) == (Published(3), "")

    asyncio.run(use())
