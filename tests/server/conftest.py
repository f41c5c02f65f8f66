"""Files, servers and pipelines that tests share. No test may change files or end a server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grace.server.scheduling.predictions import Predictions
from support.faults import Faults
from support.front_ends import WHERE
from support.occupied import FAULTY_PLACES
from support.pipeline_cases import Clock, Recorder
from support.poisoned_model import poisoned_checkpoint
from support.scripted_stages import Script, Start, pipelines
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, write_serving_files


@pytest.fixture(scope="session")
def serving_files(tmp_path_factory: pytest.TempPathFactory) -> ServingFiles:
    """The tiny catalogue's snapshot and a tiny model, written once."""
    return write_serving_files(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def healthy_server(serving_files: ServingFiles) -> Iterator[ServerProcess]:
    """`grace serve`, ready, whatever else its users have asked it."""
    with ServerProcess(serving_files.write_config("healthy.yaml")) as server:
        yield server


@pytest.fixture(scope="session")
def relayed_server(serving_files: ServingFiles) -> Iterator[ServerProcess]:
    """The same with gRPC in two relays."""
    config = serving_files.write_config("relayed.yaml", listen={"front_ends": 2})
    with ServerProcess(config) as server:
        yield server


@pytest.fixture(scope="session", params=["healthy_server", "relayed_server"], ids=WHERE)
def either_server(request: pytest.FixtureRequest) -> ServerProcess:
    server = request.getfixturevalue(request.param)
    assert isinstance(server, ServerProcess)
    return server


@pytest.fixture(scope="session")
def faulty_server(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with a small queue, a model that breaks on one value of one input, and faults. Tests
    leave it idle and its faults switched off."""
    with _faulty_server(serving_files, tmp_path_factory, front_ends=0) as server:
        yield server


@pytest.fixture(scope="session")
def relayed_faulty_server(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with _faulty_server(serving_files, tmp_path_factory, front_ends=2) as server:
        yield server


@pytest.fixture(scope="session", params=["faulty_server", "relayed_faulty_server"], ids=WHERE)
def either_faulty_server(request: pytest.FixtureRequest) -> ServerProcess:
    server = request.getfixturevalue(request.param)
    assert isinstance(server, ServerProcess)
    return server


def _faulty_server(
    files: ServingFiles, folders: pytest.TempPathFactory, front_ends: int
) -> ServerProcess:
    checkpoint = poisoned_checkpoint(folders.mktemp("poisoned"))
    config = replace(files, checkpoint=checkpoint).write_config(
        f"faulty{front_ends}.yaml",
        batching={"max_waiting": FAULTY_PLACES},
        listen={"front_ends": front_ends},
        logs={"level": "debug"},
    )
    return ServerProcess(config, faults=Faults(folders.mktemp("faults")))


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    folder = tmp_path / "faults"
    folder.mkdir()
    return Faults(folder)


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def predictions(clock: Clock) -> Predictions:
    return Predictions(clock)
