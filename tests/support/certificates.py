"""Sections and arguments that name the certificates of tests."""

import ssl
from pathlib import Path
from typing import Any

from grace.bench.fleet.certificates import Authority, Files
from grace.client import Tls
from grace.configs.serving import TlsConfig


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
