"""The commands and the Python of the README run as they are written."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import GRACE, plain_environment, run_python

pytestmark = pytest.mark.subprocess

PORTS = ("--port 0", "--admin-port 0", "--metrics-port 0")


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text()


def block(text: str, language: str, holds: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (found,) = (found for found in blocks if holds in found)
    return str(found)


def shell(script: str, folder: Path) -> str:
    environment = plain_environment(PATH=f"{GRACE.parent}:/usr/bin:/bin")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A folder with the files of a checkout that the commands name."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(repository / "configs")
    (folder / "model").symlink_to(repository / "model")
    return folder


def test_the_index_is_built_inspected_verified_and_rolled_back(readme: str, folder: Path) -> None:
    output = shell(block(readme, "sh", "grace inspect"), folder)
    assert "version 2 (published)" in output
    assert output.rstrip().endswith("snapshots: 2 -> 1 (back)")


@pytest.fixture(scope="module")
def address(readme: str, folder: Path) -> Iterator[str]:
    """The server of the README's commands, on free ports."""
    prepare, _, rest = block(readme, "sh", "grace serve").partition("grace serve")
    shell(prepare, folder)
    options = rest.partition(" &\n")[0].replace("\\\n", "").split()
    with subprocess.Popen(
        [GRACE, "serve", *options, *" ".join(PORTS).split()],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        ports = (re.search(r"listening.*?127\.0\.0\.1:(\d+)", line) for line in server.stderr)
        found = next(filter(None, ports))
        yield f"127.0.0.1:{found[1]}"
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


def test_the_server_answers_the_command_and_the_client(
    readme: str, folder: Path, address: str
) -> None:
    (retrieve,) = re.findall(r"^grace retrieve .*?(?=  #)", readme, re.MULTILINE)
    assert (folder / "demo/state/ad_updates/log").exists()  # so that stops and rollbacks work
    assert "5 returned" in shell(f"{retrieve} --address {address}", folder)
    code = block(readme, "python", "Client").replace("127.0.0.1:50051", address)
    done = run_python(code)
    assert done.stderr == ""
    assert len(re.findall(r"^\d+ -\d+\.\d+$", done.stdout, re.MULTILINE)) == 5
