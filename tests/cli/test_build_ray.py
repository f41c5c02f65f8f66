"""`grace build --shards` and `--ray`: the same bytes on a real cluster, its failures by name."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grace.configs.extras import install_command
from grace.index.builder.sharding.scratch import SCRATCH
from support.builds import arrays_in
from support.command import plain_environment, run_grace, run_python

# Ray changes the process that imports it (log records get a field): only ask whether it is there.
HAS_RAY = find_spec("ray") is not None
pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.soak,
    pytest.mark.skipif(not HAS_RAY, reason="needs the extra `ray`, which `make soak` installs"),
]

ROUNDS = """
from grace.cli.catalogue.ray_cluster import ray_tasks
from grace.configs.errors import InputError
from grace.index.builder import Task

def square(number):
    if number < 0:
        raise InputError(f"{number}: is negative")
    return number * number

for _ in range(5):
    with ray_tasks("local", 1) as tasks:
        results = tasks([Task(str(number), square, (number,)) for number in (1, -2, 3, 4)])
        assert next(results)[0] == 1
        try:
            next(results)
        except InputError as error:
            assert str(error) == "-2: is negative"
print("done")
"""
"""A build ends with its first error. Ray used to abort the driver if this cancelled a task whose
result had just arrived."""

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two machines of one core each, as Ray plays them on one."""
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=plain_environment(),
    ) as process:
        assert process.stdout is not None
        lines = (line.split() for line in process.stdout)
        yield next(words[1] for words in lines if words[:1] == ["address"])
        process.communicate()


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of ads."""
    folder = tmp_path_factory.mktemp("catalogue")
    done = run_grace("synth", "--preset", "tiny", "--out", folder / "data")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(folder / "data" / "ads.parquet")
    half = len(table) // 2
    pq.write_table(table.slice(0, half), folder / "one.parquet")
    pq.write_table(table.slice(half), folder / "two.parquet")
    shutil.copy(folder / "data" / "targeting.yaml", folder)
    (folder / "tables.yaml").write_text("ads: {files: [one.parquet, two.parquet]}\n")
    return folder


def build(
    catalogue: Path, root: Path, *more: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_grace("build", "--data", catalogue, "--root", root, *more, env=env)


@pytest.mark.parametrize("more", [("--ray", "{cluster}", "--shards", "5"), ("--ray", "local")])
def test_a_cluster_builds_the_bytes_of_one_machine(
    tmp_path: Path, catalogue: Path, cluster: str, more: tuple[str, ...]
) -> None:
    """A local cluster needs no address. Without `--shards`, Ray chooses their number."""
    whole, ray = tmp_path / "whole", tmp_path / "ray"
    for root, options in ((whole, ()), (ray, more)):
        done = build(catalogue, root, *(each.format(cluster=cluster) for each in options))
        assert done.returncode == 0, done.stderr
    assert arrays_in(ray / f"{1:020d}") == arrays_in(whole / f"{1:020d}")
    assert (ray / "CURRENT").is_file()
    assert not list(ray.glob(f"{SCRATCH}*"))


def test_an_error_ends_the_tasks_and_not_the_build_s_process() -> None:
    done = run_python(ROUNDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_a_worker_names_the_damaged_file_and_nothing_is_published(
    tmp_path: Path, catalogue: Path, cluster: str
) -> None:
    for name in ("one", "two"):
        content = bytearray((catalogue / f"{name}.parquet").read_bytes())
        content[100 : 100 + 400 * (name == "two")] = b"x" * (400 * (name == "two"))
        (tmp_path / f"{name}.parquet").write_bytes(content)
    for name in ("tables.yaml", "targeting.yaml"):
        shutil.copy(catalogue / name, tmp_path)
    done = build(tmp_path, tmp_path / "root", "--ray", cluster)
    assert done.returncode == 2
    assert f"\nerror: {tmp_path}/two.parquet: damaged" in f"\n{done.stderr}"
    assert not list((tmp_path / "root").glob("0*"))
    assert not list((tmp_path / "root").glob(f"{SCRATCH}*"))


def test_an_error_names_the_task_whose_worker_died_or_met_a_full_or_foreign_disk() -> None:
    code = """
import os
from grace.cli.catalogue.ray_cluster import ray_tasks
from grace.configs.errors import WorkerError
from grace.index.builder import Task
with ray_tasks("local", 1) as tasks:
    for function, argument in ((os._exit, 1), (os.mkdir, "/no/such/place")):
        try:
            list(tasks([Task(str(argument), function, (argument,))]))
        except WorkerError as error:
            print(f"shown: {error}")
"""
    done = run_python(code)
    shown = [line for line in done.stdout.splitlines() if line.startswith("shown: ")]
    assert len(shown) == 2, done.stderr
    assert shown[0].startswith("shown: 1: its worker failed (WorkerCrashedError")
    assert "--shards" in shown[0]
    assert "/no/such/place" in shown[1]
    assert "the snapshot root under the same paths" in shown[1]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--ray", "127.0.0.1:1"), ("--ray", "ray://127.0.0.1:10001"), ("--threads", "99")],
)
def test_an_error_about_the_cluster_names_the_option(
    tmp_path: Path, catalogue: Path, cluster: str, option: str, value: str
) -> None:
    chosen = {"--ray": cluster, option: value}
    more = [word for pair in chosen.items() for word in pair]
    done = build(catalogue, tmp_path / "root", *more)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {option} {value}: ")
    assert not list((tmp_path / "root").glob("0*"))


def test_without_ray_the_error_names_the_extra(tmp_path: Path, catalogue: Path) -> None:
    absent = tmp_path / "ray" / "__init__.py"
    absent.parent.mkdir()
    absent.write_text("raise ModuleNotFoundError('as if absent', name='ray')")
    more = ("--ray", "local")
    done = build(catalogue, tmp_path / "root", *more, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == f"error: --ray needs Ray: {install_command('ray')}\n"
