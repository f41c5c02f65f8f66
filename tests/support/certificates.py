"""CAs, certificates and keys for tests, in files as servers and clients read them."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

from grace.client import Tls
from grace.configs.serving import TlsConfig

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

    def issue(self, name: str, host: str = "127.0.0.1", not_after: datetime | None = None) -> Files:
        """Write a certificate for a host, and its key. Replace existing files, each in one step."""
        made = self._ca.issue_cert(host, not_before=NOT_BEFORE, not_after=not_after)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        for path, content in (
            (files.key, made.private_key_pem.bytes()),
            (files.certificate, chain),
        ):
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(content)
            unfinished.replace(path)
        return files


def server_section(files: Files, client_ca: Path | None = None) -> dict[str, Any]:
    """A section `tls` of a server's configuration."""
    section = {"certificate": str(files.certificate), "key": str(files.key)}
    return section if client_ca is None else {**section, "client_ca": str(client_ca)}


def server_tls(files: Files, client_ca: Path | None = None) -> TlsConfig:
    return TlsConfig(files.certificate, files.key, client_ca)


def client_tls(ca: Authority, files: Files | None = None) -> Tls:
    return Tls(ca.file) if files is None else Tls(ca.file, files.certificate, files.key)


def certificate_of(address: str) -> str:
    """Return the PEM of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))
