"""`grace demo` shows the whole path through a real server, and its claims hold."""

import fcntl
import os
import re
import signal
from pathlib import Path

import pytest

from support.command import GRACE, plain_environment, run_grace
from support.forked import forked
from support.in_process import invoke_grace

pytestmark = pytest.mark.subprocess

WAYS = ("Without targeting, decoding gives", "With targeting, the server gave")


def shares_after(heading: str, text: str) -> list[int]:
    """Return the percentages of generated ads that may be shown to the user."""
    return [int(share) for share in re.findall(rf"{heading}:.*\((\d+)%\)", text)]


def server_in(text: str) -> int | None:
    """The server's process id, in the demo's output."""
    found = re.search(r"grace serve is process (\d+) on ", text)
    return int(found[1]) if found else None


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_demo_explains_which_ads_its_users_get_and_which_not(tmp_path: Path) -> None:
    done = run_grace("demo", "--out", tmp_path, "--users", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\d)\. User ", done.stdout, re.MULTILINE) == ["4", "5", "6"]
    assert "SIDs lead to an eligible ad" in done.stdout
    assert "Not returned, although" in done.stdout
    shoes = done.stdout.partition("4. User running-shoes")[2].partition("\n5. User")[0]
    returned = re.findall(r"^    \d\. (.*)", shoes, re.MULTILINE)
    assert sum("running shoes" in title for title in returned) >= 3, (
        "the ads resemble what the user clicked"
    )
    assert re.search(r"1\. .+ \(ad \d+, p = 0\.\d+\)\n +\S", done.stdout)
    ruled = re.findall(r"^    \d+\. .+\n +\w+: .+ \(user: .+\)", done.stdout, re.MULTILINE)
    assert len(ruled) >= 3, "each user sees an ad with a targeting rule"
    alone, targeted = (shares_after(way, done.stdout) for way in WAYS)
    assert len(alone) == len(targeted) == 3
    assert sum(targeted) > 1.2 * sum(alone), "targeting while decoding finds more for the user"
    assert len(re.findall(r"The server's times: queue [\d.]+, input", done.stdout)) == 3
    assert (tmp_path / "snapshots" / "CURRENT").exists()
    assert "finished its work and ended with exit code 0" in done.stdout
    server = server_in(done.stdout)
    assert server is not None
    assert not is_running(server)
    assert f"grace retrieve --wait 60 --request {tmp_path}/request.json" in done.stdout
    assert f"--state-dir {tmp_path}/state" in done.stdout, "so that stops and rollbacks work"


@pytest.mark.parametrize("name", ["ads.parquet", "serve.yaml"])
def test_the_demo_replaces_no_file_without_force(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    done = invoke_grace("demo", "--out", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--force" in done.stderr
    assert (tmp_path / name).read_text() == "mine"


def test_without_a_folder_a_terminated_demo_leaves_neither_files_nor_its_server(
    tmp_path: Path,
) -> None:
    """The signal comes when the demo's server is ready."""
    output, theirs = os.pipe()
    # Much less than it has to say: unread, it cannot end before the signal.
    fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
    command = [str(GRACE), "demo", "--users", "64"]
    process = forked(command, plain_environment(TMPDIR=str(tmp_path)), stdout=theirs)
    os.close(theirs)
    try:
        with os.fdopen(output) as shown, process.stderr as errors:
            server = next(filter(None, map(server_in, shown)))
            assert list(tmp_path.iterdir()), "its files are here"
            process.send_signal(signal.SIGTERM)
            error = errors.read()
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert error == "interrupted\n"
    assert not is_running(server)
    assert list(tmp_path.iterdir()) == []
