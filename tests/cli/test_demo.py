"""`grace demo` shows the whole path through a real server, and its claims hold."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from grace.catalogues.demonstration import VARIANTS
from support.command import GRACE, plain_environment, run_grace
from support.in_process import invoke_grace

pytestmark = pytest.mark.subprocess

PORTS = ("--port", "0", "--admin-port", "0", "--metrics-port", "0")


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(folder: Path) -> str:
    done = run_grace("demo", "--out", "demo files", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_follows_one_sid_to_the_ad_that_it_names(shown: str) -> None:
    """A chosen token leads to the best ad, and a pruned one to an ad that the user may not see."""
    tokens = re.findall(r"^  token \d: (\d+) of (\d+) tokens lead", shown, re.MULTILINE)
    assert len(tokens) == 4
    assert any(int(admitted) < int(every) for admitted, every in tokens)
    chosen = re.findall(r"^  ▸ +(\d+) +[\d.]+%  (.*?)  ", shown, re.MULTILINE)
    (sid,) = re.findall(r"best SID for this user, ([\d ]+)$", shown, re.MULTILINE)
    assert " ".join(token for token, _ in chosen) == sid
    (best,) = re.findall(r"^    1\. (.*?) \(ad \d+, p\(SID\) = ", shown, re.MULTILINE)
    assert {title for _, title in chosen} == {best}
    assert re.search(r"^  ✗ +\d+ +[\d.]+%  .* \w+ in .*\(user: ", shown, re.MULTILINE)
    clicks = re.findall(r"^  clicked +\w.*\n {12}(.*)$", shown, re.MULTILINE)
    assert len(clicks) == 4
    assert all("location in [us/mn" in why for why in clicks), "the user may see them"
    assert re.search(r"^ +location in .*us/mn.* \(user: us/mn.*\)$", shown, re.MULTILINE)


def test_it_shows_what_the_time_and_a_filter_change(shown: str) -> None:
    found = re.findall(r"^  (\w.*): ([\d,]+) of [\d,]+ ads are .*\n    (.*)$", shown, re.MULTILINE)
    assert [name for name, *_ in found] == [*VARIANTS]
    assert len({(count, titles) for _, count, titles in found}) == len(VARIANTS)


def test_the_commands_at_the_end_work_where_the_demo_ran(shown: str, folder: Path) -> None:
    commands = [
        shlex.split(line)
        for line in re.findall(rf"^  ((?:{GRACE}|grace) .*)$", shown, re.MULTILINE)
    ]
    serve, retrieve, status, inspect = commands[-4:]
    (own,) = re.findall(r"grace serve: process (\d+) on ", shown)
    assert not is_running(int(own)), "the demo has ended its server"
    with subprocess.Popen(
        [*serve, *PORTS], cwd=folder, stderr=subprocess.PIPE, text=True, env=plain_environment()
    ) as server:
        assert server.stderr is not None
        try:
            line = next(line for line in server.stderr if "listening" in line)
            client, admin = re.findall(r"127\.0\.0\.1:\d+", line)[:2]
            answers = [
                subprocess.check_output([*command, *more], cwd=folder, text=True)
                for command, more in (
                    (retrieve, ("--address", client)),
                    (status, ("--address", admin)),
                    (inspect, ()),
                )
            ]
        finally:
            server.terminate()
            server.communicate(timeout=60)
    assert server.returncode == 0
    assert "dental clinic" in answers[0]
    assert "synth-demo-1" in answers[1]


@pytest.mark.parametrize("name", ["ads.parquet", "serve.yaml"])
def test_the_demo_replaces_no_file_without_force(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    done = invoke_grace("demo", "--out", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--force" in done.stderr
    assert (tmp_path / name).read_text() == "mine"
