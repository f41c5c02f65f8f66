"""The server refuses and counts calls without a known token, and the token file may change."""

import os
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grace.client import Access
from grace.configs.errors import ConfigError
from grace.configs.serving import ListenConfig, ServingConfig
from grace.server.observe.metrics import Metrics
from grace.server.server_state import ServerState
from grace.server.transport.credentials.credential_files import CredentialFiles
from grace.server.transport.credentials.tokens import read_tokens
from grace.server.transport.credentials.watched_credentials import WatchedCredentials
from support.pipeline_cases import GENERATION
from support.served import METHOD, Service, served

GOOD, NEXT = "good-token-0123456789", "next-token-0123456789"
TEXT = (
    "the call has no token that the server accepts: send `authorization: Bearer TOKEN`, with a "
    "token from its listen.token_file"
)
STRANGERS = (None, NEXT, GOOD[:-1], GOOD + "x", "")


async def outcome(service: Service, token: str | None, message: bytes = b"") -> str:
    async with Access(token=token).aio_channel(service.address, ()) as channel:
        method: Any = channel.unary_unary(METHOD)
        try:
            await method(message, timeout=30, metadata=Access(token=token).metadata)
        except grpc.aio.AioRpcError as error:
            trailers = dict(error.trailing_metadata())
            return f"{error.code().name} {trailers['grace-reason']}: {error.details()}"
    return "OK"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"{GOOD}\n")
    return path


def test_only_calls_with_a_known_token_are_read_and_all_are_counted(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(service: Service, retrieve: Any) -> None:
        for token in STRANGERS:
            # The message is not even parsed: its fault would be reported otherwise.
            refused = await outcome(service, token, b"\xff")
            assert refused == f"UNAUTHENTICATED unauthenticated: {TEXT}"
        assert await outcome(service, GOOD) == "OK"
        for scheme, code in (("bearer", "OK"), ("Basic", "UNAUTHENTICATED")):
            call = retrieve(b"", metadata=(("authorization", f"{scheme} {GOOD}"),))
            assert (await call.code()).name == code
        reason = service.count("grace_request_failures_total", reason="unauthenticated")
        assert reason == service.count("grace_requests_total", code="UNAUTHENTICATED") == 6
        assert service.count("grace_requests_total", code="OK") == 2
        async with grpc.aio.insecure_channel(service.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not service.state.open_calls

    served(use, token_file=file)
    assert not any("good-token" in str(vars(record)) for record in caplog.records)


def test_tokens_follow_their_file_and_an_emptied_file_keeps_the_old_ones(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(service: Service, _: Any) -> None:
        def write(text: str) -> None:
            file.write_text(text)
            service.credentials.look()

        async def allowed() -> list[bool]:
            return [await outcome(service, token) == "OK" for token in (GOOD, NEXT)]

        write(f"{GOOD}\n\n  {NEXT}\r\n")
        assert await allowed() == [True, True]
        write(f"{NEXT}\n")
        assert await allowed() == [False, True]
        for text in ("", "\n\n", "short\n"):
            write(text)
            service.credentials.look()
            assert await allowed() == [False, True]
        os.unlink(file)  # noqa: PTH108
        service.credentials.look()
        assert await allowed() == [False, True]

        def loads(result: str) -> float:
            setting = "listen.token_file"
            return service.count("grace_credentials_load_total", setting=setting, result=result)

        assert (loads("ok"), loads("failed")) == (2, 4)

    served(use, token_file=file)
    faults = [record for record in caplog.records if record.message == "credentials_refused"]
    assert len(faults) == 4


def test_a_file_that_is_rewritten_while_it_is_read_is_read_again_at_the_next_look(
    file: Path,
) -> None:
    rewrites = ["second"]
    reports: list[ConfigError | None] = []

    def read() -> str:
        content = file.read_text()
        if rewrites:
            file.write_text(rewrites.pop())
        return content

    files = CredentialFiles((file,), read, reports.append)
    assert files.latest == f"{GOOD}\n"
    assert files.look() == "second"
    assert reports == [None]
    file.write_text("the third, and not y")
    rewrites.append("the third, and whole now")
    assert files.look() == "second"
    assert reports == [None]
    for _ in range(2):
        assert files.look() == "the third, and whole now"
        assert reports == [None, None]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b" \n", "no token; give one token per line, such as `openssl rand -hex 32` prints"),
        (f"{GOOD}\nlittle\n".encode(), "line 2 has 6 characters, not 16 to 1024; give"),
        (b"two words-0123456789", "line 1 has characters that are not allowed in a header; give"),
        (b"\xff" * 40, "line 1 has characters that are not allowed in a header; give"),
        (f"{GOOD}\n".encode() * 101, "101 tokens, at most 100; give groups of clients one token"),
    ],
)
def test_a_faulty_file_is_refused_by_its_line_and_never_quoted(
    content: bytes, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_tokens("listen.token_file", path)
    assert str(refused.value).startswith(f"listen.token_file: {path}: {fault}")
    assert "little" not in str(refused.value)
    assert "words" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o440, 0o604, 0o644])
def test_a_token_file_that_every_user_may_read_gets_a_warning_whenever_it_is_read(
    mode: int, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A group may read it: Kubernetes gives the files of a Secret to the group of the pod."""

    async def use(service: Service, _: Any) -> None:
        service.credentials.look()
        file.write_text(f"{NEXT}\n")
        service.credentials.look()
        file.write_text("")
        service.credentials.look()  # refused, so the one above stays

    file.chmod(mode)
    served(use, token_file=file)
    warnings = [vars(each) for each in caplog.records if each.message == "secret_is_public"]
    assert len(warnings) == (2 if mode & 0o004 else 0)
    for warning in warnings:
        assert (warning["setting"], warning["path"]) == ("listen.token_file", str(file))
        assert (warning["mode"], warning["remedy"]) == (f"{mode:04o}", f"chmod 600 {file}")


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_tokens_that_cross_a_network_in_plaintext_get_a_warning(
    host: str, warned: bool, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listen = ListenConfig(host=host, token_file=file)
    config = ServingConfig(Path(), Path(), GENERATION, listen=listen)
    WatchedCredentials(config, Metrics(ServerState(), torch.device("cpu")))
    assert any(each.message == "tokens_in_plaintext" for each in caplog.records) == warned
