"""Every command of README and docs runs as it is written: in their order, and in one folder.

The commands of a document run in one shell, which at its end stops the servers that it has started.
Only `grace` differs from a reader's: servers listen on free ports, and long work is cut short.
Other tests run the Python of the documents that `WITH_PYTHON` does not name.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.bench.child_process import free_port
from support.causal_folders import REPOSITORIES, write_causal
from support.command import GRACE, plain_environment
from support.documents import NOT_RUN, blocks_of, pages_in_order
from support.forked_program import forked_grace
from support.t5_folders import T5Shape, write_t5

pytestmark = pytest.mark.subprocess

WITH_PYTHON = ("README.md", "quickstart.md", "api.md", "sids.md")
GRACE_FOR_READERS = """\
case "$1 $*" in
  synth*--raw*) {grace} "$@" --sids 333 && exec sed -i 9999q raw/clicks.csv; exit 1 ;;
  synth*paper*) set -- "$@" --sids 3333 ;;
esac
case "$1" in
  serve) set -- "$@" --port {retrieve} --admin-port {admin} --metrics-port {metrics} ;;
  retrieve) set -- "$@" --address 127.0.0.1:{retrieve} ;;
  admin | explain) set -- "$@" --address 127.0.0.1:{admin} ;;
  sids) set -- "$@" --codes 8 ;;
  train) set -- "$@" --steps 1 ;;
esac
exec {grace} "$@"
"""
BEGINNING = """
stop() { for job in $(jobs -p); do kill "$job"; wait "$job"; done; }
trap 'code=$?; trap - EXIT; stop; exit $code' EXIT
"""
NEEDED = ("bash", "curl", "grpcurl", "jq", "openssl")


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """A folder with the files of a checkout, and those that readers bring."""
    for name in ("bench", "configs", "model", "proto"):
        (tmp_path / name).symlink_to(repository / name)
    write_t5(T5Shape(vocab_sizes=(256, 256, 256, 256)), tmp_path / "hf-t5", seed=3)
    write_causal(REPOSITORIES["OpenOneRec"][0], tmp_path / "hf-qwen")
    ads = {"ad_id": pa.array([5, 6]), "sid": pa.array([[1, 2, 3, 4], [1, 2, 3, 511]])}
    pq.write_table(pa.table(ads), tmp_path / "ads.parquet")
    (tmp_path / "targeting.yaml").write_text("{}\n")
    items = {"7": ["<a_1>", "<b_2>"], "8": ["<a_1>", "<b_0>"]}
    (tmp_path / "Beauty.index.json").write_text(json.dumps(items))
    (tmp_path / "beauty.csv").write_text("ad_id,name\n7,soap\n8,comb\n")
    return tmp_path


def put_programs(folder: Path, ports: Sequence[int], grace: Path) -> Path:
    programs = folder / "programs"
    programs.mkdir()
    addresses = dict(zip(("retrieve", "admin", "metrics"), ports, strict=True))
    filled = GRACE_FOR_READERS.format(grace=grace, **addresses)
    (programs / "grace").write_text(f"#!/bin/sh\n{filled}")
    (programs / "grace").chmod(0o755)
    return programs


def commands_of(page: Path, folder: Path) -> str:
    """Return a script of the document's commands, and write the files that it shows."""
    parts = []
    for block in blocks_of(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        elif block.not_run is not None:
            assert block.not_run in NOT_RUN, f"{page.name}: {block.not_run}"
        elif block.language == "sh":
            parts.append(block.text)
        elif block.language == "python" and page.name in WITH_PYTHON:
            parts.append(f"python <<'END'\n{block.text}END\n")
    return "".join(parts)


def answers_in(page: Path) -> list[str]:
    """The answers that the document prints, in blocks of `text`."""
    return [block.text for block in blocks_of(page) if block.language == "text"]


def test_every_command_of_readme_and_docs_runs_in_one_folder(
    repository: Path, folder: Path
) -> None:
    path = os.pathsep.join((str(GRACE.parent), os.environ["PATH"]))
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    ports = [free_port() for _ in range(3)]
    programs = put_programs(folder, ports, folder / "forked-grace")
    environment = plain_environment(PATH=f"{programs}{os.pathsep}{path}")
    with forked_grace(folder / "forked-grace"):
        for page in pages_in_order(repository):
            run_commands_of(page, folder, ports, environment)


def run_commands_of(
    page: Path, folder: Path, ports: Sequence[int], environment: Mapping[str, str]
) -> None:
    script = commands_of(page, folder)
    for documented, port in zip((50051, 50052, 9464), ports, strict=True):
        script = script.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{port}")
        script = script.replace(f"localhost:{documented}", f"localhost:{port}")
    with subprocess.Popen(
        ["bash", "-eo", "pipefail", "-c", f"{BEGINNING}{script}\nstop"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate()
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, 9)
    assert shell.returncode == 0, f"{page.name}\n{script}\n{said[-4000:]}"
    for text in answers_in(page):
        assert text in said, f"{page.name} does not say {text!r}:\n{said}"
