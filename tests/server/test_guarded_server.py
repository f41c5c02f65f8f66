"""A server for a network: TLS, client certificates, tokens, gRPC in relays, Admin on 0.0.0.0.

Its clients are ours, grpcurl, and gRPC's.
"""

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.bench.fleet.certificates import Authority, Files
from grace.client import AsyncClient, Client, Tls
from grace.client.connection import channel as grpc_channel
from grace.configs.errors import CallError, InputError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.certificates import certificate_of, client_tls, server_section
from support.command import run_command
from support.documents import the_block
from support.in_process import printed
from support.retrieve_calls import Counters, assert_counters_conserve
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

GRPCURL = Path(sys.executable).with_name("grpcurl")
STATUS = "grace.v1.Admin/GetStatus"
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
REQUEST = RetrieveRequest(request_id="r1", max_ads=3)


@dataclass(frozen=True)
class Guarded:
    server: ServerProcess
    ca: Authority
    files: Files
    client: Files

    @property
    def tls(self) -> Tls:
        return client_tls(self.ca, self.client)

    @property
    def admin(self) -> str:
        """The address at which clients reach Admin."""
        return self.server.admin.replace("0.0.0.0", "127.0.0.1")

    def options(self) -> list[str]:
        """The options with which our commands connect."""
        tls = ("--tls-ca", self.ca.file, "--tls-certificate", self.client.certificate)
        return [*map(str, (*tls, "--tls-key", self.client.key))]


@pytest.fixture(scope="module")
def guarded(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    ca = Authority(folder, "ours")
    files, client = ca.issue("server"), ca.issue("client")
    config = serving_files.write_config(
        "guarded.yaml",
        listen={"front_ends": 2, "tls": server_section(files, ca.file)},
        admin={"host": "0.0.0.0", "tls": server_section(files, ca.file)},
    )
    with ServerProcess(config) as server:
        yield Guarded(server, ca, files, client)


def test_the_documented_commands_reach_it(
    guarded: Guarded, repository: Path, tmp_path: Path
) -> None:
    block = the_block(repository / "docs" / "api.md", "sh", "--tls-ca")
    commands = block.replace("\\\n", " ").splitlines()
    for name, file in (
        ("ca.pem", guarded.ca.file),
        ("client.pem", guarded.client.certificate),
        ("client.key", guarded.client.key),
    ):
        (tmp_path / name).symlink_to(file)
    (tmp_path / "request.json").write_text('{"max_ads": 3}')
    path = os.pathsep.join((str(GRPCURL.parent), os.environ["PATH"]))
    for command in commands:
        if command.startswith("ghz "):
            continue  # it cannot be installed by pip
        command = command.replace("ads.example.com:50051", guarded.server.address)
        done = run_command("bash", "-c", command, cwd=tmp_path, env={"PATH": path})
        assert (done.returncode, done.stderr) == (0, "")
        assert "3 returned" in done.stdout or len(json.loads(done.stdout)["ad_ids"]) == 3


def test_admin_cannot_be_reached_without_a_certificate_of_its_ca(
    guarded: Guarded, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other").issue("stranger")
    for tls, reached in (
        (None, False),
        (client_tls(guarded.ca), False),
        (client_tls(guarded.ca, stranger), False),
        (guarded.tls, True),
    ):
        with grpc_channel(guarded.admin, tls, OWN_CONNECTION) as channel:
            method: Any = channel.unary_unary(f"/{STATUS}")
            call = method.future(b"", timeout=30)
            assert (call.code() is grpc.StatusCode.OK) == reached


def test_the_python_clients_and_commands_answer_with_a_certificate(
    guarded: Guarded, serving_files: ServingFiles
) -> None:
    server = guarded.server

    async def ads() -> list[int]:
        async with AsyncClient(server.address, guarded.tls) as client:
            return [ad.ad_id for ad in (await client.retrieve(REQUEST, timeout=30.0)).ads]

    with Client(server.address, tls=guarded.tls) as client:
        client.wait_ready(30.0)
        assert client.retrieve(REQUEST, timeout=30.0).ads.ad_ids.tolist() == asyncio.run(ads())
    printed("retrieve", "--address", server.address, *guarded.options(), "--wait", "30")
    load = ["--address", server.address, "--data", str(serving_files.warm_up), "--seconds", "1"]
    load += ["--in-flight", "2"]
    run = run_command(sys.executable, "-m", "grace.bench.load", *load, *guarded.options())
    found = re.search(
        r"^\| [\d.]+ \| [\d.,]+ \| ([\d,]+) \| \1 \| 0 \| 0 \|", run.stdout, re.MULTILINE
    )
    assert found is not None, run.stderr


def test_certificates_change_under_load_without_a_failed_call(guarded: Guarded) -> None:
    """Some clients stay connected, others connect for each call."""
    server, stop = guarded.server, threading.Event()
    failed: list[Exception] = []
    done = [0] * 4

    def keep_calling(number: int) -> None:
        kept = Client(server.address, guarded.tls)
        while not stop.is_set():
            client = kept
            if number % 2:
                client = Client(server.address, guarded.tls)
            try:
                client.retrieve(REQUEST, timeout=60.0)
            except CallError as error:
                failed.append(error)
            done[number] += 1
            if client is not kept:
                client.close()
        kept.close()

    def loaded(setting: str) -> float:
        return server.metric("grace_credentials_load_total", setting=setting, result="ok")

    before = Counters.of(server)
    threads = [threading.Thread(target=keep_calling, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(1, 4):
        guarded.ca.issue("server")  # two files, one after the other
        server.wait_until(
            lambda: min(map(loaded, ("listen.tls", "admin.tls"))) >= turn,  # noqa: B023
            f"the server has read change {turn}",
        )
        now = guarded.files.certificate.read_text()
        assert all(certificate_of(server.address) in now for _ in range(5)), "in every relay"
        assert certificate_of(guarded.admin) in now
        made = list(done)
        server.wait_until(
            lambda: all(end > begin + 2 for end, begin in zip(done, made, strict=True)),  # noqa: B023
            "every client has made more calls",
        )
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert_counters_conserve(server, sum(done), before)


def test_the_client_explains_why_a_connection_failed(guarded: Guarded, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    guarded_address, plaintext = guarded.server.address, guarded.server.metrics_address
    name = guarded_address.replace("127.0.0.1", "localhost")
    for address, tls, text in (
        (guarded_address, None, "closed the connection: it may speak only TLS"),
        (guarded_address, client_tls(guarded.ca), "it may require a client certificate"),
        (
            guarded_address,
            client_tls(guarded.ca, other.issue("client")),
            "it may not trust the CA of this client's certificate",
        ),
        (guarded_address, client_tls(other, guarded.client), "this client trusts no CA that"),
        (name, guarded.tls, "is for another name; use an address that it names"),
        (plaintext, client_tls(guarded.ca), "does not speak TLS; connect without it"),
    ):
        with Client(address, tls) as client:
            failed = failure_of(client)
            attempts = 1
            # `localhost` may also name ::1, where no server listens. gRPC may report the fault of
            # either address, and the client retries if no server listens.
            while address == name and "no server at" in str(failed) and attempts < 20:
                failed = failure_of(client)
                attempts += 1
            assert text in str(failed)
            assert failed.code == "UNAVAILABLE"
            assert "it may" in text or address == name or failed.attempts == 1
            assert address in str(failed)
            if "it may" not in text:  # the fault lasts
                with pytest.raises(CallError, match=text):
                    client.wait_ready(60.0)


def failure_of(client: Client) -> CallError:
    with pytest.raises(CallError) as failed:
        client.retrieve(REQUEST, timeout=30.0)
    return failed.value


def test_files_of_a_client_are_checked_before_it_connects(tmp_path: Path) -> None:
    """test_tls.py has more faults of such files."""
    files = Authority(tmp_path, "one").issue("one")
    for tls, fault in (
        (Tls(files.key), f"tls.ca: {files.key}: no certificates in PEM"),
        (Tls(None, files.certificate), "tls.certificate is given without tls.key; give both, or"),
    ):
        with pytest.raises(InputError) as refused:
            Client("127.0.0.1:1", tls)
        assert str(refused.value).startswith(fault)
