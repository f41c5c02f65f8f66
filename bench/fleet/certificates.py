"""CAs, certificates and keys of one run, in the files that servers, Envoy and clients read."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme

from grace.client import Tls

NOT_BEFORE = datetime(1998, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Files:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA in a folder: `file` has its certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = folder / f"{name}-ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *hosts: str) -> Files:
        """Write a certificate for hosts, by default 127.0.0.1, and its key.

        Replace existing files, each in one step.
        """
        made = self._ca.issue_cert(*(hosts or ("127.0.0.1",)), not_before=NOT_BEFORE)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        for path, content in (
            (files.key, made.private_key_pem.bytes()),
            (files.certificate, chain),
        ):
            unfinished = path.with_suffix(".unfinished")
            unfinished.touch(0o600)
            unfinished.write_bytes(content)
            unfinished.replace(path)
        return files


@dataclass(frozen=True)
class Identities:
    """One CA for servers, one for clients, and the certificate that each side shows.

    Envoy shows `envoy_inside` to servers, and `envoy_outside` to clients.
    """

    servers: Authority
    clients: Authority
    server: Files
    envoy_inside: Files
    envoy_outside: Files
    client: Files

    @staticmethod
    def write(folder: Path, server_name: str) -> "Identities":
        """Write all files. A server's certificate has `server_name` and 127.0.0.1."""
        servers, clients = Authority(folder, "servers"), Authority(folder, "clients")
        return Identities(
            servers,
            clients,
            servers.issue("server", server_name, "127.0.0.1"),
            clients.issue("envoy-inside", "envoy"),
            servers.issue("envoy-outside", "127.0.0.1"),
            clients.issue("client", "client"),
        )

    @property
    def server_section(self) -> dict[str, str]:
        """The section `tls` of a server's configuration."""
        return {
            "certificate": str(self.server.certificate),
            "key": str(self.server.key),
            "client_ca": str(self.clients.file),
        }

    @property
    def client_tls(self) -> Tls:
        return Tls(self.servers.file, self.client.certificate, self.client.key)
