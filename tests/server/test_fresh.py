"""New, changed and removed ads on a real server: served soon, and kept over everything."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fresh_ads import json_row, table_rows
from support.health import status
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.update_calls import Updater

pytestmark = pytest.mark.subprocess

NEW = 10**12
"""Ids from here on are those of new ads."""


@pytest.fixture
def config(serving_files: ServingFiles, tmp_path: Path) -> Path:
    return serving_files.write_config(f"{tmp_path.name}.yaml", state_dir=str(tmp_path / "state"))


@contextmanager
def serving(config: Path, **settings: Any) -> Iterator[tuple[ServerProcess, Updater, Caller]]:
    with (
        ServerProcess(config, **settings) as server,
        Updater(server) as updater,
        Caller(server.address) as caller,
    ):
        yield server, updater, caller


def test_ads_are_put_replaced_and_removed(serving_files: ServingFiles, config: Path) -> None:
    request = message(serving_files.requests[0], max_ads=10_000)
    rows = table_rows(serving_files)
    with serving(config) as (server, updater, caller):
        before = list(caller.call(request).response.ad_ids)
        like = rows[before[0]]
        got = updater.apply(1, put=[json_row({**like, "ad_id": NEW})], wait_visible=True)
        assert (got.visible, list(got.refused)) == (1, [])
        assert set(caller.call(request).response.ad_ids) == {*before, NEW}
        print(server.log("changes_served"), status(server).updates)
        got = updater.apply(2, remove=[NEW, before[1]], wait_visible=True)
        assert set(caller.call(request).response.ad_ids) == {*before} - {before[1]}
        print(server.log("changes_served"), status(server).updates)
