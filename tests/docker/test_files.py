"""The files in docker/ pass their linter, and agree with the program and with each other."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from grace.configs.serving import AdminConfig, ListenConfig, MetricsConfig, load_serving_config

HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.fixture(scope="module")
def docker(repository: Path) -> Path:
    return repository / "docker"


@pytest.fixture(scope="module")
def dockerfile(docker: Path) -> str:
    return (docker / "Dockerfile").read_text()


@pytest.mark.subprocess
@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed: make setup")
def test_hadolint_finds_nothing_in_the_dockerfile(docker: Path) -> None:
    command = [str(HADOLINT), "--no-color", str(docker / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_container_listens_to_the_outside_except_for_admin(docker: Path) -> None:
    config = load_serving_config(docker / "serve.yaml")
    assert (config.listen.host, config.metrics.host) == ("0.0.0.0", "0.0.0.0")
    assert config.admin == AdminConfig()


def test_the_image_exposes_the_ports_that_the_server_listens_on(dockerfile: str) -> None:
    listen, metrics = ListenConfig().port, MetricsConfig().port
    assert re.findall(r"^EXPOSE (.*)$", dockerfile, re.MULTILINE) == [f"{listen} {metrics}"]
    assert f"http://127.0.0.1:{metrics}/healthz" in dockerfile


def test_the_server_keeps_its_state_in_the_declared_volume(dockerfile: str, docker: Path) -> None:
    (volume,) = re.findall(r"^VOLUME (.*)$", dockerfile, re.MULTILINE)
    config = load_serving_config(docker / "serve.yaml")
    assert config.state_dir is not None
    assert config.state_dir.is_relative_to(volume)
    (cache,) = re.findall(r"TRITON_CACHE_DIR=(\S+)", dockerfile)
    assert Path(cache).is_relative_to(volume)


def test_every_image_ends_with_the_same_user_who_is_not_root(dockerfile: str) -> None:
    stages = re.split(r"^FROM .* AS ", dockerfile, flags=re.MULTILINE)[1:]
    last = {stage.split()[0]: re.findall(r"^USER (.*)$", stage, re.MULTILINE) for stage in stages}
    assert {name: users for name, users in last.items() if users} == {
        "builder": ["65532:65532"],
        "cuda": ["65532:65532"],
        "cpu": ["65532:65532"],
    }
    assert list(last)[-1] == "cpu", "the default"
    assert "--uid 65532" in dockerfile


def test_the_images_lock_what_the_project_needs(docker: Path, repository: Path) -> None:
    """If this fails, a dependency has changed: run `make lock`."""
    program = runpy.run_path(str(docker / "requirements.py"))
    head = program["head_of"](program["wanted"](repository / "pyproject.toml"))
    files = {file.stem: file.read_text() for file in (docker / "locked").iterdir()}
    assert files.keys() == {"project", "serve", "torch", "nvcc"}
    for text in files.values():
        assert text.startswith(f"{head}\n")
        assert text.count("\n    --hash=sha256:") >= text.count("==") > 0
