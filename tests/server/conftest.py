"""Files, servers and pipelines that tests share. No test may change files or end a server."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from grace.server.engine.serving_pair import ServingPair
from support.faults import Faults
from support.health import status
from support.live_snapshots import LiveRoot
from support.occupied import FAULTY_PLACES
from support.pipeline_cases import Recorder, Script, Start, pipelines
from support.server_process import ServerProcess, server_script
from support.serving_files import ServingFiles, write_serving_files
from support.stage_cases import load_cpu_pair
from support.text_shop import write_text_shop
from support.update_calls import Updater


@pytest.fixture(scope="session")
def serving_files(tmp_path_factory: pytest.TempPathFactory) -> ServingFiles:
    """The tiny catalogue's snapshot and a tiny model, written once."""
    return write_serving_files(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def pair(serving_files: ServingFiles) -> ServingPair:
    """The same files, loaded into this process; tests leave no ad stopped."""
    return load_cpu_pair(serving_files.snapshots, serving_files.checkpoint)


@pytest.fixture
def shop(serving_files: ServingFiles, tmp_path: Path) -> Path:
    """A data folder of the tiny catalogue in which ads and advertisers have texts as ids."""
    return write_text_shop(tmp_path / "shop", serving_files)


@pytest.fixture
def live(serving_files: ServingFiles, tmp_path: Path) -> LiveRoot:
    """A root of two versions, of which the first is published."""
    return LiveRoot.write(tmp_path, serving_files)


@pytest.fixture(scope="session")
def healthy_server(serving_files: ServingFiles) -> Iterator[ServerProcess]:
    """A ready `grace serve` with gRPC in two relays, which several tests share."""
    config = serving_files.write_config("healthy.yaml", listen={"front_ends": 2})
    with ServerProcess(config, command=server_script()) as server:
        yield server


@pytest.fixture(scope="session")
def faulty_server(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server without relays, with a small queue and faults that tests switch on.

    Tests leave it idle, with its faults off.
    """
    config = serving_files.write_config(
        "faulty.yaml", batching={"max_waiting": FAULTY_PLACES}, logs={"level": "debug"}
    )
    with ServerProcess(config, faults=Faults(tmp_path_factory.mktemp("faults"))) as server:
        yield server


@pytest.fixture(scope="session")
def operated_server(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that takes updates of ads, with faults that tests switch on."""
    folder, faults = tmp_path_factory.mktemp("operated"), Faults(tmp_path_factory.mktemp("faults"))
    config = serving_files.write_config("operated.yaml", state_dir=str(folder / "state"))
    with ServerProcess(config, faults=faults) as server:
        yield server


@pytest.fixture
def operated(operated_server: ServerProcess) -> ServerProcess:
    """The same server, where nothing is stopped, weighted, put or removed."""
    with Updater(operated_server) as updater:
        after = status(operated_server).updates.sequence + 1
        updater.apply(after, full=True, wait_visible=True)
    return operated_server


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def start(script: Script, recorder: Recorder) -> Iterator[Start]:
    with pipelines(script, recorder) as make:
        yield make


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Inside, only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
