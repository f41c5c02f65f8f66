"""`grace admin follow` sends the updates of a file, which a program writes, to a server."""

import json
import os
import signal
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from grace.proto.retrieval_pb2 import GetStatusResponse, UpdateAdsRequest
from support.command import run_grace
from support.followers import following
from support.health import status
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles
from support.update_calls import Updater, assert_only_missing, update

pytestmark = pytest.mark.subprocess

REMEDY = "; append a FULL update, or rename a corrected file over this one"


def line(request: UpdateAdsRequest) -> str:
    return json.dumps(MessageToDict(request)) + "\n"


class Source:
    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, *requests: UpdateAdsRequest | str) -> None:
        texts = (each if isinstance(each, str) else line(each) for each in requests)
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(texts))

    def replace(self, *requests: UpdateAdsRequest | str) -> None:
        before = self.file.with_name("next")
        Source(before).append(*requests)
        before.rename(self.file)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "updates.jsonl")


def reached(server: ServerProcess, sequence: int, **stopped: int) -> bool:
    facts = status(server).updates
    return (facts.sequence, dict(facts.stopped)) == (sequence, stopped)


def reaches(server: ServerProcess, sequence: int, **stopped: int) -> None:
    words = f"update {sequence} is in force with {stopped} stopped"
    server.wait_until(lambda: reached(server, sequence, **stopped), words)


def test_a_file_that_grows_and_is_rotated_is_followed_line_by_line(
    operated: ServerProcess, source: Source, serving_files: ServingFiles
) -> None:
    request = message(serving_files.requests[0], max_ads=10_000)
    caller, last = Caller(operated.address), status(operated).updates.sequence
    before = list(caller.call(request).response.ad_ids)
    first, second, third = before[:3]
    with following(source.file, operated.admin):
        begun = line(update(last + 2, stop={"ad": [second]}))
        source.append(update(last + 1, stop={"ad": [first]}), "\n", begun[:33])
        reaches(operated, last + 1, ad=1)
        assert first not in caller.call(request).response.ad_ids
        source.append(begun[33:])
        reaches(operated, last + 2, ad=2)
        old = source.file.with_name("old")
        source.file.rename(old)
        Source(old).append(update(last + 3, stop={"ad": [third]}))
        source.append(update(last + 4, stop={"campaign": [7]}))
        reaches(operated, last + 4, ad=3, campaign=1)
        now = caller.call(request).response.ad_ids
        assert_only_missing(now, before, {first, second, third})
        ads = range(10**9, 10**9 + 777)
        source.replace(*(update(last + 5 + n, stop={"ad": [ad]}) for n, ad in enumerate(ads)))
        reaches(operated, last + 781, ad=780, campaign=1)
    source.append(update(last + 782, resume={"ad": [first]}))
    with following(source.file, operated.admin) as again:
        reaches(operated, last + 782, ad=779, campaign=1)
        again.wait_done(f"followed from update {last + 781}")
    assert not again.faults
    caller.close()


def test_after_a_faulty_line_nothing_is_sent_until_a_full_update_or_another_file(
    operated: ServerProcess, source: Source
) -> None:
    last = status(operated).updates.sequence

    def delta(number: int) -> UpdateAdsRequest:
        return update(last + number, stop={"ad": [number]})

    def written(number: int, stop: str) -> str:
        return f'{{"sequence": {last + number}, "kind": "KIND_DELTA", "stop": {stop}}}\n'

    refused = operated.metric("grace_updates_total", result="refused")
    with following(source.file, operated.admin) as follower:
        source.append(delta(1), written(2, '{"ad": {"ids": "4711"}}'), delta(2))  # a text, no list
        follower.wait_fault(1, "line 2: not an UpdateAdsRequest: ")
        assert follower.faults[-1].endswith(REMEDY)
        wait_until(
            lambda: operated.metric("grace_updates_total", result="refused") == refused + 1,
            "the server counts the fault, so that its alert fires",
        )
        reaches(operated, last + 1, ad=1)
        source.append(update(last + 3, full=True, stop={"ad": [1, 2, 3]}), delta(4))
        reaches(operated, last + 4, ad=4)
        follower.wait_done("followed again")
        source.append(delta(6), delta(7))
        follower.wait_fault(2, f"line 6: sequence: {last + 6} does not follow {last + 4}; send")
        reaches(operated, last + 4, ad=4)
        source.replace(*map(delta, range(4, 8)))
        reaches(operated, last + 7, ad=7)
        source.append(update(last + 8, weights={7: float("nan")}), delta(8))
        follower.wait_fault(3, "line 5: weights[0].weight: must be finite")
        source.append("\xff", "\n")
        source.file.write_text("", encoding="utf-8")  # cut: as another file
        source.append(update(last + 8, resume={"ad": [2]}))
        reaches(operated, last + 8, ad=6)
        as_protobuf_has_them = written(9, '{"ad": {"ids": [111, "112", 113.0, "114.0"]}}')
        source.append(as_protobuf_has_them)
        reaches(operated, last + 9, ad=10)
        source.append(written(10, '{"ad": {"ids": [1]}, "ad": {"ids": [5]}}'))
        follower.wait_fault(4, "line 3: not an UpdateAdsRequest: key 'ad' occurs twice")
        reaches(operated, last + 9, ad=10)


def test_a_file_that_cannot_be_read_is_reported_and_followed_once_it_can_be(
    operated: ServerProcess, source: Source
) -> None:
    last = status(operated).updates.sequence
    with following(source.file, operated.admin) as follower:
        follower.wait_fault(1, "cannot be read: No such file or directory; correct its path or its")
        for count, (make, remove) in enumerate(((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)), 1):
            source.append(update(last + count, stop={"ad": [count]}))
            reaches(operated, last + count, ad=count)
            source.file.unlink()
            make(source.file)
            follower.wait_fault(1 + count, "cannot be read: not a regular file; correct its path")
            remove(source.file)


def test_restarted_servers_get_every_line_once_before_they_are_ready_even_without_their_state(
    serving_files: ServingFiles, source: Source, tmp_path: Path
) -> None:
    def config(state: str, port: str) -> Path:
        return serving_files.write_config(
            f"{tmp_path.name}.yaml",
            state_dir=str(tmp_path / state),
            updates={"await_sender": True},
            admin={"port": int(port)},
        )

    with ServerProcess(config("state", "0"), ready=False) as server:
        address = server.admin
        server.wait_until(lambda: status(server).HasField("snapshot"), "it has loaded")
        assert status(server).state == GetStatusResponse.STATE_STARTING
        source.append(update(1, full=True), update(2, stop={"ad": [1]}))
        with following(source.file, address) as follower:
            server.wait_ready()
            assert reached(server, 2, ad=1)
            server.kill()
            follower.wait_fault(1, "UNAVAILABLE: no server at")
            source.append(update(3, stop={"ad": [2]}))
            port = address.rpartition(":")[2]
            for state in ("state", "other"):
                with ServerProcess(config(state, port)) as again:  # which waits until it is ready
                    assert reached(again, 3, ad=2)
                    assert again.metric("grace_updates_total", result="repeated") == 0
            follower.wait_done("read again from its start, for update 1")


def test_a_number_that_another_sender_has_used_is_a_fault(
    operated: ServerProcess, source: Source
) -> None:
    last = status(operated).updates.sequence
    with following(source.file, operated.admin) as follower, Updater(operated) as updater:
        source.append(update(last + 1, stop={"ad": [1]}))
        reaches(operated, last + 1, ad=1)
        os.kill(follower.pid, signal.SIGSTOP)
        updater.apply(last + 2, stop={"ad": [63]})
        source.append(update(last + 2, stop={"ad": [2]}))
        os.kill(follower.pid, signal.SIGCONT)
        follower.wait_fault(1, f"line 2: sequence: another sender has used the number {last + 2}")


def test_an_address_that_does_not_serve_admin_ends_the_command(
    healthy_server: ServerProcess, source: Source
) -> None:
    done = run_grace("admin", "follow", source.file, "--address", healthy_server.address)
    assert done.returncode != 0
    assert f"what answers at {healthy_server.address} does not serve Admin" in done.stderr
