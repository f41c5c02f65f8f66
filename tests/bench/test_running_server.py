"""A server as a child process: if it does not start, it is reported and leaves no process."""

import os
from pathlib import Path

import pytest

from grace import configs
from grace.bench.running_server import RunningServer, write_server_config
from grace.configs.errors import CallError

pytestmark = pytest.mark.subprocess

PROFILES = Path(configs.__file__).parent / "serve.yaml"


def test_a_server_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    folders = tmp_path / "snapshots", tmp_path / "model"
    config = write_server_config(tmp_path / "serve.yaml", *folders, PROFILES, devise="cuda")
    server = RunningServer(config, tmp_path / "server.log")
    assert server.last_lines == []
    refused = pytest.raises(CallError, match=r"ended with exit code 2 before it was ready: error: ")
    with refused as caught, server:
        pass
    assert "devise" in str(caught.value)
    assert "devise" in server.last_lines[-1]
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
