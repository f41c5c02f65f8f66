"""Read and check files of certificates and keys, for servers and for clients.

gRPC accepts any bytes, and then every handshake fails without a cause. So these functions find the
faults. Each error is a ConfigError that names the setting, the file and the remedy.
"""

import re
import ssl
from pathlib import Path
from typing import NoReturn

from grace.configs.errors import ConfigError
from grace.configs.regular_files import read_regular

CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
MAX_BYTES = 1 << 20


def read_pem(setting: str, path: Path) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        fault = error.strerror or str(error)
        text = f"{fault[:1].lower()}{fault[1:]}; name a PEM file that may be read"
        raise ConfigError(f"{setting}: {path}: {text}") from None


def read_certificates(setting: str, path: Path) -> bytes:
    """Return the file's bytes. Require at least one certificate, and that all can be parsed."""
    content = read_pem(setting, path)
    try:
        found = [pem.decode("ascii") for pem in CERTIFICATE.findall(content)]
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata="\n".join(found))
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"{setting}: {path}: no certificates in PEM; each begins with "
            "-----BEGIN CERTIFICATE----- and must be whole"
        ) from None
    return content


def require_pair(section: str, certificate: Path, key: Path) -> None:
    """Require that the key belongs to the certificate and has no passphrase."""

    def ask_passphrase() -> NoReturn:
        raise ConfigError(
            f"{section}.key: {key}: has a passphrase; give the key without one "
            "(openssl pkey -in KEY -out NEW)"
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, ask_passphrase)
    except ssl.SSLError as error:
        fault = "no PEM private key"
        if error.reason == "KEY_VALUES_MISMATCH":
            fault = "another key than that"
        elif error.reason:
            fault = f"cannot be used ({error.reason}) as the private key"
        raise ConfigError(
            f"{section}.key: {key}: {fault} of {section}.certificate, {certificate}; give the key "
            "that this certificate was made for"
        ) from None
    except OSError as error:  # one of them has gone since it was read: they are being replaced
        raise ConfigError(
            f"{section}: {certificate} and {key}: {error.strerror or error}; keep both in place"
        ) from None
