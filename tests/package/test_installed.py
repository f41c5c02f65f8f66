"""A wheel or an sdist is installed: light, or next to projects that own `proto` and `kernels`."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import triton

from grace.native.build import ARCHITECTURES
from support import layout
from support.clone import copy_clone
from support.command import plain_environment
from support.server_process import ServerProcess
from support.serving_files import write_serving_files

pytestmark = [pytest.mark.package, pytest.mark.subprocess]

STRANGERS = ("proto-plus", "kernels")
"""Distributions whose import packages are `proto` and `kernels`."""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; a wheel that it builds has the GPU kernels."""
    given, environment = (
        [*map(str, command)],
        plain_environment(PYTHONPATH="", GRACE_WHEEL_CUDA="1"),
    )
    done = subprocess.run(
        given, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_clone(repository, tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def sdist(clone: Path) -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", cwd=clone)
    (made,) = (clone / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist makes, as pip makes it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=source)
    (made,) = (source / "dist").glob("*.whl")
    return made


def product_files(repository: Path) -> set[str]:
    """The files of the packages that an installed `grace` needs, as `grace/...`."""
    kinds = {".py", ".pyi", ".proto", ".yaml", ".safetensors", ".cpp", ".h", ".cu", ".cuh"}
    return {
        f"grace/{name}"
        for file in layout.tracked_files(repository)
        if (name := file.relative_to(repository).as_posix()).partition("/")[0] in layout.LAYERS
        and (file.suffix in kinds or name == "client/service_config.json")
        and not name.startswith("native/tests/")
    }


def test_the_wheel_of_the_sdist_has_every_file_and_installs_grace_alone(
    wheel: Path, repository: Path
) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert product_files(repository) - names == set()
    assert "grace/native/_build/libgrace_cpu.so" in names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"grace"}


def test_the_wheel_has_the_kernels_of_every_gpu(wheel: Path, tmp_path: Path) -> None:
    dumps = str(triton.knobs.nvidia.cuobjdump.path)
    with zipfile.ZipFile(wheel) as packed:
        library = packed.extract("grace/native/_build/libgrace_cuda.so", tmp_path)
    for kind, code in (("elf", ARCHITECTURES), ("ptx", ["80"])):
        listed = run(dumps, f"--list-{kind}", library, cwd=tmp_path)
        assert {*re.findall(r"\.sm_(\w+)\.", listed)} == {*code}


@pytest.mark.parametrize("order", ["grace first", "grace last"])
def test_the_demo_runs_from_any_folder_next_to_proto_plus_and_kernels(
    wheel: Path, order: str, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    ours: list[tuple[str | Path, ...]] = [(f"{wheel}[serve]",)]
    theirs: list[tuple[str | Path, ...]] = [STRANGERS]
    for packages in ours + theirs if order == "grace first" else theirs + ours:
        run(python, "-m", "pip", "install", "--quiet", *packages, cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    for name in ("configs", "server", "native"):  # a user's own folders
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise ImportError('not of grace')\n")
    shown = run(environment / "bin" / "grace", "demo", cwd=elsewhere)
    assert "4. The best of " in shown
    code = "import proto, kernels, grace.cli.main; print(proto.__file__, kernels.__file__)"
    files = run(python, "-P", "-c", code, cwd=elsewhere).split()
    assert [Path(file).is_relative_to(environment) for file in files] == [True, True]
    assert os.fspath(elsewhere) not in "".join(files)


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the wheel and no extra."""
    folder = tmp_path_factory.mktemp("light")
    run(sys.executable, "-m", "venv", "environment", cwd=folder)
    programs = folder / "environment" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    assert "torch" not in run(programs / "python", "-m", "pip", "list", cwd=folder)
    findings = json.loads(run(programs / "grace", "doctor", "--json", cwd=folder))["findings"]
    assert {each["name"]: each["status"] for each in findings}["CUDA kernels"] == "ok"
    return programs


CALL = """
import asyncio, sys
from grace.client import AsyncClient, Client
address, asked = sys.argv[1], {"user": {"country": "US"}, "max_ads": 3, "timeout": 60.0}
async def ask():
    async with AsyncClient(address) as client:
        return await client.retrieve(**asked)
with Client(address) as client:
    ads = client.retrieve(**asked).ads
assert [ad.ad_id for ad in ads] == [ad.ad_id for ad in asyncio.run(ask()).ads]
print(ads[0].ad_id)
"""


def test_without_torch_the_clients_and_the_operators_commands_call_a_server(
    light: Path, tmp_path: Path
) -> None:
    files = write_serving_files(tmp_path / "served")
    grace = light / "grace"
    with ServerProcess(files.write_config(state_dir=str(tmp_path / "state"))) as server:
        ad = run(light / "python", "-c", CALL, server.address, cwd=tmp_path).strip()
        asked = ("--user", "country=US", "--address")
        assert ad in run(grace, "retrieve", *asked, server.address, cwd=tmp_path)
        assert "returned" in run(grace, "explain", "--ad", ad, *asked, server.admin, cwd=tmp_path)
        run(grace, "admin", "stop", "ad", ad, "--address", server.admin, cwd=tmp_path)
        assert ad in run(grace, "admin", "stops", "--address", server.admin, cwd=tmp_path)
        assert ad not in run(grace, "retrieve", *asked, server.address, cwd=tmp_path)
