"""Connections over TLS, and certificates that change while the server runs.

The listeners run in the test's process; test_guarded_server.py has relays and real clients.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448

from grace.bench.fleet.certificates import Authority, Files
from grace.client import Tls
from grace.client.connection import channel
from grace.configs.errors import ConfigError
from grace.configs.pem_files import require_pair
from grace.configs.serving import TlsConfig
from grace.server.transport import certificates
from grace.server.transport.certificates import CertificateFiles, read_certificate
from support.certificates import certificate_of, client_tls, server_tls
from support.served import METHOD, Service, served

DATES = (datetime(2001, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC))
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ca(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture
def files(ca: Authority, request: pytest.FixtureRequest) -> Files:
    """The server's certificate, which the test may change."""
    return ca.issue(re.sub(r"\W", "-", request.node.name))


async def outcome(address: str, tls: Tls | None) -> str:
    """Return how a call over a new connection ends."""
    async with channel(address, tls, OWN_CONNECTION, grpc.aio) as opened:
        method: Any = opened.unary_unary(METHOD)
        try:
            await method(b"", timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


def half_written(files: Files, _: Authority) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes()[:333])


def half_replaced(files: Files, ca: Authority) -> None:
    ca.issue("next").certificate.replace(files.certificate)


def removed(files: Files, _: Authority) -> None:
    files.key.unlink()


@pytest.mark.parametrize("break_", [half_written, half_replaced, removed])
def test_a_broken_certificate_keeps_the_old_one_until_it_is_whole(
    break_: Callable[..., None], ca: Authority, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(service: Service, _: Any) -> None:
        loads = partial(service.count, "grace_credentials_load_total", setting="listen.tls")
        old = await asyncio.to_thread(certificate_of, service.address)
        break_(files, ca)
        for _ in range(3):
            assert await outcome(service.address, client_tls(ca)) == "OK"
            service.credentials.look()
        assert await asyncio.to_thread(certificate_of, service.address) == old
        assert (loads(result="ok"), loads(result="failed")) == (0, 1)
        ca.issue(files.certificate.stem)
        assert await outcome(service.address, client_tls(ca)) == "OK"
        assert await asyncio.to_thread(certificate_of, service.address) != old
        assert (loads(result="ok"), loads(result="failed")) == (1, 1)

    served(use, tls=server_tls(files))
    (refused,) = [vars(each) for each in caplog.records if each.message == "credentials_refused"]
    assert refused["levelname"] == "ERROR"
    assert refused["fault"].startswith("listen.tls.")
    assert str(files.key) in refused["fault"] or str(files.certificate) in refused["fault"]


PEM = "no certificates in PEM; each begins with -----BEGIN CERTIFICATE----- and must be whole"
GIVE = "t.certificate, {certificate}; give the key that this certificate was made for"
FAULTS: Mapping[str, tuple[Callable[[Files, Path], object], str]] = {
    "no certificate": (
        lambda files, _: files.certificate.unlink(),
        "t.certificate: {certificate}: no such file or directory; name a PEM file that may be read",
    ),
    "too large": (
        lambda files, _: files.key.write_bytes(bytes(1_048_577)),
        "t.key: {key}: larger than 1048576 bytes; name a PEM file that may be read",
    ),
    "no PEM": (
        lambda files, _: files.certificate.write_text("no"),
        f"t.certificate: {{certificate}}: {PEM}",
    ),
    "no key in PEM": (
        lambda files, _: files.key.write_text("no"),
        f"t.key: {{key}}: no PEM private key of {GIVE}",
    ),
    "another key": (
        lambda files, other: files.key.write_bytes(other.read_bytes()),
        f"t.key: {{key}}: another key than that of {GIVE}",
    ),
    "a passphrase": (
        lambda files, _: encrypt(files.key),
        "t.key: {key}: has a passphrase; give the key without one (openssl pkey -in KEY -out NEW)",
    ),
    "no CA": (
        lambda files, _: files.certificate.with_name("ca.pem").write_text("no"),
        f"t.client_ca: {{ca}}: {PEM}",
    ),
}


def encrypt(path: Path) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, secret))


@pytest.mark.parametrize(("break_", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_file_is_named_with_its_setting_and_what_to_do(
    break_: Callable[[Files, Path], object], fault: str, tmp_path: Path, ca: Authority
) -> None:
    files, other = Authority(tmp_path, "own").issue("cert"), ca.issue("other").key
    authority = tmp_path / "ca.pem"
    authority.write_bytes(ca.file.read_bytes())
    read_certificate("t", server_tls(files, authority))
    break_(files, other)
    with pytest.raises(ConfigError) as refused:
        read_certificate("t", server_tls(files, authority))
    paths = {"certificate": files.certificate, "key": files.key, "ca": authority}
    assert str(refused.value) == fault.format(**paths)


def test_a_file_that_is_rewritten_while_it_is_read_is_read_again_at_the_next_look(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrites = ["second"]
    reports: list[ConfigError | None] = []

    def read(_: str, config: TlsConfig) -> str:
        content = config.certificate.read_text()
        if rewrites:
            config.certificate.write_text(rewrites.pop())
        return content

    monkeypatch.setattr(certificates, "read_certificate", read)
    files.certificate.write_text("first")
    followed: Any = CertificateFiles("t", server_tls(files), reports.append)
    assert followed.look() == "second"
    assert reports == [None]
    files.certificate.write_text("the third, and not y")
    rewrites.append("the third, and whole now")
    assert followed.look() == "second"
    assert reports == [None]
    for _ in range(2):
        assert followed.look() == "the third, and whole now"
        assert reports == [None, None]


def test_a_key_that_grpc_cannot_use_ends_the_start(tmp_path: Path) -> None:
    key, name = ed448.Ed448PrivateKey.generate(), x509.Name([])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, *DATES).sign(key, None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = Files(tmp_path / "cert.pem", tmp_path / "key.pem")
    files.key.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    files.certificate.write_bytes(made.public_bytes(pem))

    async def use(_: Service, __: Any) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match=r"^listen.tls: gRPC cannot use this certificate; give"):
        served(use, tls=server_tls(files))


def test_files_that_go_away_while_they_are_read_are_a_fault_like_any_other(tmp_path: Path) -> None:
    """Otherwise the task that looks for new files would end, and never look again."""
    with pytest.raises(ConfigError, match=r"^listen.tls: .*No such file or directory; keep both"):
        require_pair("listen.tls", tmp_path / "gone.pem", tmp_path / "gone.key")
