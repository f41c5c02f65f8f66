"""Envoy with the project's configuration over real servers, and clients of both over TLS.

Only addresses, ports and the paths of certificates differ from docker/envoy/envoy.yaml.
"""

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import grpc
import yaml

from grace.proto.retrieval_pb2 import RetrieveResponse
from support.certificates import Authority, Files
from support.command import plain_environment
from support.live_snapshots import LiveRoot, assert_plain
from support.retrieve_calls import METHOD, message
from support.server_process import ServerProcess, wait_until

ENVOY = Path(sys.executable).with_name("envoy")
CALL_SECONDS = 20.0
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


def free_port() -> int:
    """Return a port below those that the system gives out, so that a restart finds it free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port


@dataclass(frozen=True)
class Identities:
    """One CA for servers, one for clients, and what each side shows."""

    servers: Authority
    clients: Authority
    server: Files
    envoy_inside: Files
    envoy_outside: Files
    client: Files

    @staticmethod
    def write(folder: Path, server_name: str) -> "Identities":
        servers, clients = Authority(folder, "servers"), Authority(folder, "clients")
        return Identities(
            servers,
            clients,
            servers.issue("server", server_name),
            clients.issue("envoy-inside", "envoy"),
            servers.issue("envoy-outside", "localhost"),
            clients.issue("client", "client"),
        )

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.servers.file.read_bytes(),
            self.client.key.read_bytes(),
            self.client.certificate.read_bytes(),
        )


class Envoy:
    """Envoy with the project's file; `address` is for clients."""

    def __init__(
        self, file: Path, folder: Path, identities: Identities, servers: Sequence[str]
    ) -> None:
        self._config, self._log = folder / "envoy.yaml", folder / "envoy.log"
        self._admin, self._port, self.stats = free_port(), free_port(), free_port()
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        self._place(values, identities, servers)
        self._config.write_text(yaml.safe_dump(values), encoding="utf-8")

    @property
    def address(self) -> str:
        return f"localhost:{self._port}"

    def __enter__(self) -> Self:
        command = [str(ENVOY), "-c", str(self._config), "--disable-hot-restart"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--concurrency", "1", "--log-level", "warning"],
                env=plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait_healthy(self, *servers: str) -> None:
        self.wait_until(lambda: self.healthy() == set(servers), f"{servers} are healthy")

    def wait_until(self, holds: Any, what: str) -> None:
        def held_or_ended() -> bool:
            return self._process.poll() is not None or holds()

        wait_until(held_or_ended, what)
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")

    def healthy(self) -> set[str]:
        """The servers that Envoy may choose."""
        try:
            shown = json.loads(self._get(self._admin, "/clusters?format=json"))
        except OSError:  # it starts
            return set()
        (grace,) = (each for each in shown["cluster_statuses"] if each["name"] == "grace")
        return {
            f"{where['address']}:{where['port_value']}"
            for host in grace.get("host_statuses", ())
            if host["health_status"] == {"eds_health_status": "HEALTHY"}
            for where in (host["address"]["socket_address"],)
        }

    def counted(self, name: str) -> int:
        """Return a counter of the servers' cluster."""
        text = self._get(self._admin, f"/stats?filter=^cluster.grace.{name}$")
        return int(text.rpartition(": ")[2])

    def scrape(self) -> str:
        return self._get(self.stats, "/stats/prometheus")

    def ready(self) -> str:
        return self._get(self.stats, "/ready").strip()

    def _get(self, port: int, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return str(reply.read().decode())

    def _place(self, values: Any, identities: Identities, servers: Sequence[str]) -> None:
        """Replace addresses, ports and the paths of certificates, and nothing else."""
        resources = values["static_resources"]
        clients, stats = resources["listeners"]
        grace, admin = resources["clusters"]
        own_admin = values["admin"]["address"]["socket_address"]
        (admin_endpoint,) = admin["load_assignment"]["endpoints"][0]["lb_endpoints"]
        reached = admin_endpoint["endpoint"]["address"]["socket_address"]
        own_admin["port_value"] = reached["port_value"] = self._admin
        for listener, port in ((clients, self._port), (stats, self.stats)):
            listener["address"] = _address(f"127.0.0.1:{port}")
        grace["load_assignment"]["endpoints"] = [
            {"lb_endpoints": [{"endpoint": {"address": _address(server)}} for server in servers]}
        ]
        outside = clients["filter_chains"][0]["transport_socket"]["typed_config"]
        inside = grace["transport_socket"]["typed_config"]
        _certify(outside, identities.envoy_outside, identities.clients)
        _certify(inside, identities.envoy_inside, identities.servers)


def _address(server: str) -> dict[str, Any]:
    host, _, port = server.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _certify(tls: dict[str, Any], shown: Files, trusted: Authority) -> None:
    common = tls["common_tls_context"]
    (certificate,) = common["tls_certificates"]
    certificate["certificate_chain"]["filename"] = str(shown.certificate)
    certificate["private_key"]["filename"] = str(shown.key)
    common["validation_context"]["trusted_ca"]["filename"] = str(trusted.file)


class FleetClients:
    """Call at a steady rate while inside, whatever comes back, with one retry on UNAVAILABLE.

    After the block, `ends` counts the calls by status, and `versions` the answers by version.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials,
        live: LiveRoot,
        rate: float,
        connections: int = 2,
    ) -> None:
        options = (
            ("grpc.service_config", json.dumps(ONE_RETRY)),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channels = [
            grpc.secure_channel(address, credentials, options) for _ in range(connections)
        ]
        self._methods: list[Any] = [each.unary_unary(METHOD) for each in self._channels]
        self._requests = [message(request) for request in live.requests]
        self._rate = rate
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._made = 0
        self._replies: Counter[bytes] = Counter()
        self.ends: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self.slowest = 0.0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self.ends.total() == self._made, 2 * CALL_SECONDS
            )
        for channel in self._channels:
            channel.close()
        assert ended, "a call has no outcome"

    def wait_for_answers(self, count: int, version: int | None = None) -> None:
        """Return once there are this many more answers, of this version if one is given."""

        def answers() -> int:
            return self.ends["OK"] if version is None else self.versions[version]

        with self._changed:
            wanted = answers() + count
            assert self._changed.wait_for(lambda: answers() >= wanted, 60), self.ends

    def assert_all_plain(self, expected: Mapping[tuple[str, int], RetrieveResponse]) -> None:
        for reply in self._replies:
            assert_plain(RetrieveResponse.FromString(reply), expected)

    @property
    def share_ok(self) -> float:
        return self.ends["OK"] / self.ends.total()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(max(0.0, begin + self._made / self._rate - time.monotonic())):
            request = self._requests[self._made % len(self._requests)]
            method = self._methods[self._made % len(self._methods)]
            with self._changed:
                self._made += 1
            sent = time.monotonic()
            call = method.future(request, timeout=CALL_SECONDS)
            call.add_done_callback(lambda call, sent=sent: self._ended(call, sent))

    def _ended(self, call: Any, sent: float) -> None:
        took, reply = time.monotonic() - sent, None
        end = call.code().name
        if end == "OK":
            reply = RetrieveResponse.FromString(call.result())
            reply.ClearField("timings")
        else:
            end = f"{end}: {call.details()}"
        with self._changed:
            self.ends[end] += 1
            self.slowest = max(self.slowest, took)
            if reply is not None:
                self.versions[reply.snapshot_version] += 1
                self._replies[reply.SerializeToString(deterministic=True)] += 1
            self._changed.notify_all()


class Place:
    """An address at which one server after another listens."""

    def __init__(self, config: Path, address: str) -> None:
        self.address = address
        self._config = config

    def start(self) -> None:
        self.server = ServerProcess(self._config)
        self.server.__enter__()

    def replace(self) -> None:
        """Drain the server, which must exit with 0, and start another one."""
        self.server.terminate()
        assert self.server.wait() == 0, self.server.lines
        self.start()

    def kill(self) -> None:
        if hasattr(self, "server"):
            self.server.kill()
