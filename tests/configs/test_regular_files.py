"""Only regular files are opened, and nothing that a path leads to can make the caller wait."""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from grace.configs.regular_files import open_regular, read_regular


def be_a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


OTHERS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": be_a_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_is_no_regular_file_is_refused_at_once(tmp_path: Path, other: str) -> None:
    path = tmp_path / "file"
    OTHERS[other](path)
    descriptors = len(list(Path("/dev/fd").iterdir()))
    for use in (open_regular, lambda path: read_regular(path, 7)):
        with pytest.raises(OSError, match="not a regular file") as caught:
            use(path)
        assert (caught.value.strerror, caught.value.filename) == ("not a regular file", str(path))
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


def test_a_link_to_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 7) == b"content"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_regular(tmp_path / "link", 6)
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        read_regular(tmp_path / "missing", 7)


def test_a_file_that_another_process_has_leased_is_not_waited_for(tmp_path: Path) -> None:
    """Opening it would wait until its holder lets go, for up to 45 s."""
    path = tmp_path / "file"
    path.touch()
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # asks the holder to let go
    try:
        with path.open("r+b") as holder:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with pytest.raises(OSError, match="another process has a lease on it; try again once"):
                open_regular(path)
        assert read_regular(path, 7) == b""
    finally:
        signal.signal(signal.SIGIO, before)
