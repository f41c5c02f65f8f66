"""A server that follows a file of updates, which a pipeline writes."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from grace.proto.retrieval_pb2 import UpdateAdsRequest
from support.health import status
from support.in_process import invoke_grace
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.update_calls import Updater, assert_only_missing, update

pytestmark = pytest.mark.subprocess


def line(request: UpdateAdsRequest) -> str:
    return json.dumps(MessageToDict(request)) + "\n"


class Source:
    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, *requests: UpdateAdsRequest | str) -> None:
        texts = (each if isinstance(each, str) else line(each) for each in requests)
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(texts))

    def append_in_pieces(self, *requests: UpdateAdsRequest) -> None:
        text, rng = "".join(map(line, requests)), random.Random(5)
        while text:
            size = rng.randrange(1, 63)
            self.append(text[:size])
            text = text[size:]

    def replace(self, *requests: UpdateAdsRequest | str) -> None:
        before = self.file.with_name("next")
        before.unlink(missing_ok=True)
        Source(before).append(*requests)
        before.rename(self.file)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "updates.jsonl")


@pytest.fixture
def config(serving_files: ServingFiles, tmp_path: Path, source: Source) -> Path:
    return serving_files.write_config(
        f"{tmp_path.name}.yaml",
        state_dir=str(tmp_path / "state"),
        updates={"file": str(source.file), "require_full": True},
    )


@pytest.fixture
def server(config: Path, source: Source) -> Iterator[ServerProcess]:
    source.append(update(1, full=True))
    with ServerProcess(config) as server:
        yield server


def reaches(server: ServerProcess, sequence: int, **stopped: int) -> None:
    def there() -> bool:
        facts = status(server).updates
        return (facts.sequence, dict(facts.stopped)) == (sequence, stopped)

    server.wait_until(there, f"update {sequence} is in force with {stopped} stopped")


def test_a_file_that_grows_and_is_rotated_is_followed_line_by_line(
    server: ServerProcess, source: Source, serving_files: ServingFiles, config: Path
) -> None:
    request = message(serving_files.requests[0], max_ads=10_000)
    caller = Caller(server.address)
    before = list(caller.call(request).response.ad_ids)
    first, second, third = before[:3]
    source.append(update(2, stop={"ad": [first]}), "\n")
    reaches(server, 2, ad=1)
    assert first not in caller.call(request).response.ad_ids
    source.append_in_pieces(update(3, stop={"ad": [second]}))
    reaches(server, 3, ad=2)
    source.file.rename(source.file.with_name("old"))
    Source(source.file.with_name("old")).append(update(4, stop={"ad": [third]}))
    source.append(update(5, stop={"campaign": [7]}))
    reaches(server, 5, ad=3, campaign=1)
    now = caller.call(request).response.ad_ids
    assert_only_missing(now, before, {first, second, third})
    source.replace(*(update(n, stop={"ad": [n]}) for n in range(6, 3006)))
    reaches(server, 3005, ad=3003, campaign=1)
    source.append_in_pieces(*(update(n, resume={"ad": [n]}) for n in range(3006, 3069)))
    reaches(server, 3068, ad=3003, campaign=1)
    caller.close()
    server.kill()
    source.append(update(3069, full=True, stop={"ad": [second]}))
    with ServerProcess(config) as again:  # it has read the file before it is ready
        assert status(again).updates.sequence == 3069
        caller = Caller(again.address)
        assert_only_missing(caller.call(request).response.ad_ids, before, {second})
        caller.close()


def stopped_at(server: ServerProcess, count: int, fault: str) -> None:
    entry = server.wait_log("updates_file_stopped", count)[-1]
    assert fault in entry["fault"]
    assert "append a FULL update, or rename a corrected file over this one" in entry["fault"]
    assert server.metric("grace_updates_file_stopped") == 1
    assert status(server).updates.source_fault == entry["fault"]
    shown = invoke_grace("admin", "status", "--address", server.admin).stdout
    assert f"updates.file is not followed: {entry['fault']}" in shown


def follows(server: ServerProcess) -> None:
    server.wait_until(
        lambda: server.metric("grace_updates_file_stopped") == 0, "it follows the file again"
    )
    assert status(server).updates.source_fault == ""


def test_a_faulty_line_stops_the_source_until_a_full_update_or_another_file(
    server: ServerProcess, source: Source
) -> None:
    source.append(update(2, stop={"ad": [2]}), '{"sequence": "3", "kind": }\n')
    source.append(update(3, stop={"ad": [3]}))
    stopped_at(server, 1, "line 3: not an UpdateAdsRequest")
    reaches(server, 2, ad=1)
    source.append(update(4, full=True, stop={"ad": [2, 3, 4]}), update(5, stop={"ad": [5]}))
    reaches(server, 5, ad=4)
    follows(server)
    source.append(update(7, stop={"ad": [7]}), update(8, stop={"ad": [8]}))
    stopped_at(server, 2, "line 7: sequence: 7 does not follow 5; send 6, or")
    reaches(server, 5, ad=4)
    source.replace(*(update(n, stop={"ad": [n]}) for n in (5, 6, 7, 8)))
    reaches(server, 8, ad=7)
    source.append(update(9, weights={7: float("nan")}), update(9, stop={"ad": [9]}))
    stopped_at(server, 3, "line 5: weights[0].weight: must be finite")
    reaches(server, 8, ad=7)
    source.append("\xff", "\n")
    source.file.write_text("", encoding="utf-8")  # cut: as another file
    source.append(update(9, resume={"ad": [2]}))
    reaches(server, 9, ad=6)
    follows(server)
    ids = '[111, "112", 113.0, "114.0"]'  # protobuf's JSON has them all
    source.append(f'{{"sequence": 10, "kind": "KIND_DELTA", "stop": {{"ad": {{"ids": {ids}}}}}}}\n')
    reaches(server, 10, ad=10)
    twice = '"ad": {"ids": [1]}, "ad": {"ids": [5]}'
    source.append(f'{{"sequence": 11, "kind": "KIND_DELTA", "stop": {{{twice}}}}}\n')
    stopped_at(server, 4, "line 3: not an UpdateAdsRequest: Failed to load JSON")
    reaches(server, 10, ad=10)
    assert server.metric("grace_updates_total", result="refused") >= 3


def test_what_cannot_be_read_is_reported_until_it_can_be(
    server: ServerProcess, source: Source
) -> None:
    for count, (make, remove) in enumerate(((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)), 1):
        source.file.unlink()
        make(source.file)
        fault = server.wait_log("updates_file_stopped", count)[-1]["fault"]
        assert fault == (
            "cannot be read: not a regular file; correct its path or its rights, and the server "
            "follows it again"
        )
        assert status(server).updates.source_fault == fault
        assert server.metric("grace_updates_file_stopped") == 1
        remove(source.file)
        source.append(update(1 + count, stop={"ad": [1 + count]}))
        reaches(server, 1 + count, ad=count)
        follows(server)
        assert len(server.log("updates_file_stopped")) == count


def test_a_missing_file_is_waited_for_and_calls_are_refused(config: Path, source: Source) -> None:
    with ServerProcess(config, ready=False) as server:
        server.wait_log("awaits_full")
        assert "No such file" in server.wait_log("updates_file_stopped")[0]["fault"]
        assert server.metric("grace_updates_file_stopped") == 1
        source.append(update(7, full=True, stop={"ad": [1]}))
        server.wait_ready()
        reaches(server, 7, ad=1)
        assert server.metric("grace_updates_file_stopped") == 0
        source.file.unlink()
        server.wait_until(lambda: server.metric("grace_updates_file_stopped") == 1, "a fault")
        with Updater(server) as updater:
            refused = updater.call(update(8))
        assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.reason == "updates_from_file"
        assert f"updates.file: the server follows {source.file}; append" in refused.text
        server.terminate()
        assert server.wait() == 0
