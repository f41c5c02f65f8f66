"""The log of updates: what a killed writer leaves is cut off, and any other damage is refused."""

import errno
import os
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from grace.configs.errors import InputError, RequestError
from grace.index.updates.log import FILE, MAGIC, NotKeptError, UpdateLog
from grace.index.updates.state import UpdateState
from grace.index.updates.update import read_update
from support.killed import deaths_of
from support.update_calls import update

GROUPS = ([b"one"], [b"two", b""], [b"x" * 63])
UPDATES = [b"one", b"two", b"", b"x" * 63]


def written(folder: Path) -> tuple[bytes, list[int]]:
    """Write the groups; return the file's content, and where each group ends."""
    log = UpdateLog(folder, lambda message: None)
    ends = [len((folder / FILE).read_bytes())]
    for group in GROUPS:
        log.append(group)
        ends.append(len((folder / FILE).read_bytes()))
    log.close()
    return (folder / FILE).read_bytes(), ends


def found_in(folder: Path, content: bytes) -> tuple[list[bytes], int]:
    """Return the updates in a log of this content, and the bytes that the start cut off."""
    (folder / FILE).write_bytes(content)
    found: list[bytes] = []
    log = UpdateLog(folder, found.append)
    log.close()
    assert len((folder / FILE).read_bytes()) == len(content) - log.cut
    return found, log.cut


def test_a_log_has_the_bytes_that_its_format_names(tmp_path: Path) -> None:
    """So that this server reads the log of an older one."""
    groups = (*GROUPS, [b"%d" % number for number in range(1111)])
    expected = MAGIC
    for group in groups:
        payload = b"".join(struct.pack("<I", len(each)) + each for each in group)
        header = b"UPDS" + struct.pack("<QQ", len(payload), xxh3_64_intdigest(payload))
        expected += header + struct.pack("<Q", xxh3_64_intdigest(header)) + payload + b"\xa5"
    log = UpdateLog(tmp_path, lambda message: None)
    for group in groups:
        log.append(group)
    log.close()
    assert (tmp_path / FILE).read_bytes() == expected
    assert found_in(tmp_path, expected) == ([each for group in groups for each in group], 0)


def test_a_log_cut_anywhere_keeps_all_whole_groups_and_goes_on(tmp_path: Path) -> None:
    content, ends = written(tmp_path)
    for size in range(len(MAGIC), len(content) + 1):
        whole = sum(end <= size for end in ends) - 1
        expected = [each for group in GROUPS[:whole] for each in group]
        assert found_in(tmp_path, content[:size]) == (expected, size - ends[whole])
        log = UpdateLog(tmp_path, lambda message: None)
        log.append([b"next"])
        log.close()
        assert found_in(tmp_path, (tmp_path / FILE).read_bytes())[0] == [*expected, b"next"]


def test_a_last_group_whose_end_the_disk_has_not_written_is_cut(tmp_path: Path) -> None:
    content, ends = written(tmp_path)
    for size in range(ends[-2], len(content)):
        zeros = content[:size] + bytes(len(content) - size)
        assert found_in(tmp_path, zeros) == (UPDATES[:-1], len(content) - ends[-2])
    assert found_in(tmp_path, content + bytes(4096)) == (UPDATES, 4096)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[str, int]]:
    """The name and the size that each inode had when it was last synced."""
    found: dict[int, tuple[str, int]] = {}
    real_sync = os.fsync

    def sync(file: int) -> None:
        real_sync(file)
        state = os.fstat(file)
        found[state.st_ino] = str(Path(f"/proc/self/fd/{file}").readlink()), state.st_size

    monkeypatch.setattr(os, "fsync", sync)
    return found


def test_a_start_syncs_what_a_killed_writer_has_only_written(
    tmp_path: Path, synced: dict[int, tuple[str, int]]
) -> None:
    """The start takes such updates as in force, so a power cut must not lose them any more."""
    written(tmp_path)
    synced.clear()
    UpdateLog(tmp_path, lambda message: None).close()
    assert {name for name, _ in synced.values()} >= {str(tmp_path / FILE), str(tmp_path)}


def test_updates_are_on_the_disk_before_they_are_acknowledged(
    tmp_path: Path, synced: dict[int, tuple[str, int]]
) -> None:
    log = UpdateLog(tmp_path, lambda message: None)
    steps: list[Callable[[], None]] = [
        lambda: log.append([b"one"]),
        lambda: log.rewrite([b"all of it"]),
        lambda: log.append([b"next"]),
    ]
    for step in steps:
        step()
        state = (tmp_path / FILE).stat()
        assert synced[state.st_ino][1] == state.st_size
    log.close()


def test_every_damaged_byte_is_refused_with_file_offset_and_remedy(tmp_path: Path) -> None:
    content, ends = written(tmp_path)
    for place in range(len(content)):
        (tmp_path / FILE).write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        with pytest.raises(InputError) as caught:
            UpdateLog(tmp_path, lambda message: None)
        begin = max([0, *(end for end in ends if end <= place)]) if place >= len(MAGIC) else 0
        text = str(caught.value)
        assert text.startswith(f"{tmp_path / FILE}: offset {begin}: "), (place, text)
        assert "restore the file from a backup; or move it away" in text


def test_a_pipe_in_place_of_the_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(InputError, match=r"/log: not a regular file; restore the file"):
        UpdateLog(tmp_path, lambda message: None)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_place_of_the_log_is_refused_by_name(tmp_path: Path, there: bool) -> None:
    """A server that followed it would write to a file that someone else chose."""
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    written(folder)
    (folder / FILE).rename(elsewhere)
    (folder / FILE).symlink_to(elsewhere)
    content = elsewhere.read_bytes()
    if not there:
        elsewhere.unlink()
    with pytest.raises(InputError) as refused:
        UpdateLog(folder, lambda message: None)
    assert str(refused.value).startswith(f"{folder / FILE}: is a symbolic link; move the file ")
    assert elsewhere.exists() == there
    if there:
        assert elsewhere.read_bytes() == content


def test_only_its_owner_may_read_the_log(tmp_path: Path) -> None:
    state = tmp_path / "made" / "state"
    umask = os.umask(0)
    try:
        log = UpdateLog(state / "ad_updates", lambda message: None)
        log.append([b"one"])
        modes = [modes_below(state)]
        log.rewrite([b"one"])
        modes.append(modes_below(state))
        log.close()
    finally:
        os.umask(umask)
    private = {"": 0o700, "ad_updates": 0o700, "ad_updates/log": 0o600, "ad_updates/.lock": 0o600}
    assert modes == [private, private]


def modes_below(folder: Path) -> dict[str, int]:
    found = (folder, *folder.rglob("*"))
    return {
        str(each.relative_to(folder)).removesuffix("."): each.stat().st_mode & 0o777
        for each in found
    }


def test_updates_that_do_not_replay_are_refused(tmp_path: Path) -> None:
    _, ends = written(tmp_path)

    def replay(message: bytes) -> None:
        if message == b"two":
            raise RequestError("kind", "3 is no kind")

    with pytest.raises(InputError, match=rf"offset {ends[1]} does not replay: kind: 3 is no kind"):
        UpdateLog(tmp_path, replay)


def test_a_log_wants_to_be_rewritten_when_it_has_grown(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path, lambda message: None)
    rewritten = []
    for _ in range(63):
        log.append([b"x" * 1_000_003])
        if log.wants_rewrite:
            log.rewrite([b"x" * 7_000_003])
            rewritten.append((tmp_path / FILE).stat().st_size)
    log.close()
    assert 2 <= len(rewritten) <= 8


def test_a_write_that_fails_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """The limit of a file's size makes the real write fail in its middle."""
    log = UpdateLog(tmp_path, lambda message: None)
    log.append([b"one"])
    size = (tmp_path / FILE).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
    try:
        with pytest.raises(NotKeptError, match=os.strerror(errno.EFBIG)):
            log.append([b"x" * 111])
        with pytest.raises(NotKeptError, match="cannot be rewritten"):
            log.rewrite([b"x" * 1111])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / FILE).stat().st_size == size
    log.append([b"two"])
    log.close()
    assert found_in(tmp_path, (tmp_path / FILE).read_bytes()) == ([b"one", b"two"], 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log"]


@pytest.mark.parametrize("by", ["nothing", "another file", "the folder's end"])
def test_a_log_that_is_taken_away_takes_no_more_updates(tmp_path: Path, by: str) -> None:
    """The next start would not find them."""
    folder = tmp_path / "updates"
    log = UpdateLog(folder, lambda message: None)
    log.append([b"one"])
    if by == "the folder's end":
        shutil.rmtree(folder)
    else:
        (folder / FILE).rename(tmp_path / "elsewhere")
    if by == "another file":
        shutil.copy(tmp_path / "elsewhere", folder / FILE)
    for _ in range(2):
        with pytest.raises(NotKeptError, match="was removed or replaced while the server ran; "):
            log.append([b"two"])
    log.close()


GROUPS_OF_A_WRITER, OF_A_GROUP = 4, 2


def opened(folder: Path) -> tuple[UpdateLog, UpdateState]:
    state = UpdateState()

    def replay(message: bytes) -> None:
        assert state.apply(read_update(message, bounded=False)), "an update is in the log twice"

    return UpdateLog(folder, replay), state


def stop(number: int) -> bytes:
    """Return the update of that number, which stops the ad of that id."""
    return update(number, stop={"ad": [number]}).SerializeToString()


def append_groups(folder: Path, acknowledge: int) -> None:
    """Acknowledge each group over a pipe, and let the log be rewritten."""
    report = os.write
    log, state = opened(folder)
    for _ in range(GROUPS_OF_A_WRITER):
        first = state.sequence + 1
        updates = [stop(number) for number in range(first, first + OF_A_GROUP)]
        log.append(updates)
        for each in updates:
            state.apply(read_update(each, bounded=False))
        report(acknowledge, bytes([state.sequence]))
        if state.sequence >= 2 * OF_A_GROUP:
            log.rewrite(state.full_messages())
    log.close()


def unacknowledged(folder: Path, acknowledged: int) -> int:
    """Return how many updates more the next start finds, which must be able to go on."""
    log, state = opened(folder)
    found = state.sequence
    assert acknowledged <= found <= acknowledged + OF_A_GROUP, (acknowledged, found)
    assert found % OF_A_GROUP == 0, "a group is there as a whole, or not at all"
    ids = state.stopped["ad"].sorted_ids().tolist() if found else []
    assert ids == list(range(1, found + 1))
    log.append([stop(found + 1)])
    log.close()
    log, state = opened(folder)
    assert state.sequence == found + 1
    log.close()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "log"]
    return found - acknowledged


@pytest.mark.subprocess
def test_a_writer_killed_at_any_step_loses_no_acknowledged_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill, unlike a power cut, loses nothing that was written: to sync would only take time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder, more, acknowledged = tmp_path / "updates", 0, 0

    def prepare() -> tuple[int, int]:
        shutil.rmtree(folder, ignore_errors=True)
        return os.pipe()

    def check(pipe: tuple[int, int]) -> None:
        nonlocal more, acknowledged
        ours, theirs = pipe
        os.close(theirs)
        acknowledged = max(os.read(ours, 4096), default=0)
        os.close(ours)
        more += unacknowledged(folder, acknowledged)

    assert deaths_of(prepare, lambda pipe: append_groups(folder, pipe[1]), check) > 30
    assert acknowledged == GROUPS_OF_A_WRITER * OF_A_GROUP
    assert more > 0  # deaths between the disk and the acknowledgement
