"""Envoy over two servers: no client notices that a server is killed, frozen, drained or updated."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from grace.bench.child_process import free_port
from grace.bench.fleet.certificates import Identities
from grace.bench.fleet.envoy import WAIT_SECONDS, Envoy, envoy_program, server_name
from grace.client import Client
from grace.client.connection import channel_credentials
from grace.index.storage.versions import versions
from support.documents import the_block
from support.live_snapshots import LiveRoot, assert_plain
from support.retrieve_calls import Caller, SteadyCallers, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(envoy_program() is None, reason="envoy is not installed: make setup"),
]

LEAST_OK = 0.999
CALL_SECONDS = 20.0
DOCUMENTED_ADDRESS = "grace-envoy.grace.svc.cluster.local:50051"


ONE_RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "grace.v1.AdsRetrieval"}],
            "retryPolicy": {
                "maxAttempts": 2,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Clients(SteadyCallers):
    """Ten calls a second, each with one retry on UNAVAILABLE."""

    def __init__(self, fleet: "Fleet") -> None:
        messages = list(map(message, fleet.live.requests))
        config, tls = json.dumps(ONE_RETRY), fleet.credentials
        super().__init__(fleet.envoy.address, messages, 4, 0.4, credentials=tls, config=config)

    @property
    def ends(self) -> Counter[str]:
        return Counter(each.code.name + each.text for each in self.seen)

    def wait_for_answers(self, count: int, version: int | None = None) -> None:
        """Return once there are this many more answers, of this version if one is given."""
        begin = len(self.seen)

        def answers() -> int:
            replies = (each.response for each in self.seen[begin:] if each.ok)
            return sum(version in (None, each.snapshot_version) for each in replies)

        wait_until(lambda: answers() >= count, f"{count} more answers")


class Place:
    """An address at which one server after another listens."""

    def __init__(self, config: Path, address: str) -> None:
        self.address = address
        self.config = config

    def start(self, ready: bool = True) -> None:
        self.server = ServerProcess(self.config, ready=ready)
        self.server.__enter__()

    def replace(self) -> None:
        """Drain the server, which must exit with 0, and start another one."""
        self.server.terminate()
        assert self.server.wait() == 0, self.server.lines
        self.start()

    def kill(self) -> None:
        if hasattr(self, "server"):
            self.server.kill()


@dataclass(frozen=True)
class Fleet:
    live: LiveRoot
    envoy: Envoy
    identities: Identities
    first: Place
    second: Place

    @property
    def addresses(self) -> tuple[str, str]:
        return self.first.address, self.second.address

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        return channel_credentials(self.identities.client_tls)

    def update_all(self) -> None:
        """Replace one server after the other."""
        for place in (self.first, self.second):
            place.replace()
            wait_healthy(self.envoy, *self.addresses)


def wait_healthy(envoy: Envoy, *servers: str) -> None:
    what = f"its healthy servers were {', '.join(servers)}"
    envoy.wait_until(lambda: envoy.healthy() == set(servers), what, WAIT_SECONDS)


@contextmanager
def fleet_of(files: ServingFiles, folder: Path) -> Iterator[Fleet]:
    live = LiveRoot.write(folder, files)
    identities = Identities.write(folder, server_name())
    tls = identities.server_section
    places = []
    for name in ("first", "second"):
        port = free_port()
        config = live.write_config(
            f"{name}.yaml",
            # A machine that is busy with other tests is no overload.
            batching={"target_queue_ms": 60_000},
            listen={"port": port, "tls": tls, "linger_seconds": 1.5},
            state_dir=str(folder / name),
            logs={"requests": False},
        )
        places.append(Place(config, f"127.0.0.1:{port}"))
    first, second = places
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Place.start, places))
        with Envoy(folder, identities, [each.address for each in places]) as envoy:
            yield Fleet(live, envoy, identities, first, second)
    finally:
        for place in places:
            place.kill()


def kill_drain_and_freeze(fleet: Fleet, clients: Clients, calls: int = 10) -> None:
    """End in each way once; `calls` more answers come after each change."""
    envoy, first, second = fleet.envoy, fleet.first, fleet.second
    clients.wait_for_answers(calls)

    first.server.kill()
    clients.wait_for_answers(calls)
    wait_healthy(envoy, second.address)
    first.start()
    wait_healthy(envoy, *fleet.addresses)
    clients.wait_for_answers(calls)

    version = fleet.live.add(like=2)
    fleet.live.publish(version)
    second.replace()
    wait_healthy(envoy, *fleet.addresses)
    clients.wait_for_answers(calls, version)

    first.server.signal(signal.SIGSTOP)
    try:
        wait_healthy(envoy, second.address)
        clients.wait_for_answers(calls)
    finally:
        first.server.signal(signal.SIGCONT)
    wait_healthy(envoy, *fleet.addresses)
    clients.wait_for_answers(calls)


def assert_documented_client_is_answered(fleet: Fleet, folder: Path) -> None:
    """Run the Python of docs/fleet.md, but for its address, in a folder with the files it names."""
    identities = fleet.identities
    folder.mkdir()
    shutil.copy(identities.servers.file, folder / "ca.pem")
    shutil.copy(identities.client.certificate, folder / "client.pem")
    shutil.copy(identities.client.key, folder / "client.key")
    page = Path(__file__).parents[3] / "docs" / "fleet.md"
    code = the_block(page, "python").replace(DOCUMENTED_ADDRESS, fleet.envoy.address)
    assert fleet.envoy.address in code
    command = [sys.executable, "-c", f"{code}\nprint(result.snapshot_version)"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) in versions(fleet.live.root)


def assert_only_retrieve_is_served(fleet: Fleet) -> None:
    for method in ("/grpc.health.v1.Health/Watch", "/grace.v1.Admin/GetStatus"):
        with grpc.secure_channel(fleet.envoy.address, fleet.credentials) as channel:
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=CALL_SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with Client(fleet.envoy.address, tls=fleet.identities.client_tls) as client:
        client.wait_ready(CALL_SECONDS)  # it watches health
        assert client.retrieve(fleet.live.requests[0], timeout=CALL_SECONDS).attempts == 1
    trusting = grpc.ssl_channel_credentials(fleet.identities.servers.file.read_bytes())
    stranger = Caller(fleet.envoy.address, trusting)
    refused = stranger.call(message(fleet.live.requests[0]), CALL_SECONDS)
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    stranger.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(9, marks=pytest.mark.soak)])
def test_updated_killed_drained_and_frozen_servers_fail_no_call(
    serving_files: ServingFiles, tmp_path: Path, rounds: int
) -> None:
    with fleet_of(serving_files, tmp_path) as fleet:
        envoy = fleet.envoy
        assert envoy.get(envoy.stats, "/ready").strip() == "LIVE"
        scraped = envoy.get(envoy.stats, "/stats/prometheus")
        assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="grace"}' in scraped
        assert_only_retrieve_is_served(fleet)
        assert_documented_client_is_answered(fleet, tmp_path / "client")
        with Clients(fleet) as clients:
            clients.wait_for_answers(20)
            fleet.update_all()
            clients.wait_for_answers(20)
            assert set(clients.ends) == {"OK"}
            for _ in range(rounds):
                kill_drain_and_freeze(fleet, clients)
        replies = [each.response for each in clients.seen if each.ok]
        expected = fleet.live.expected(*{each.snapshot_version for each in replies})
        for reply in replies:
            assert_plain(reply, expected)
        assert len(replies) >= LEAST_OK * len(clients.seen), clients.ends
