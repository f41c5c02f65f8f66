"""Several servers in turn: the Python client, and the service config of docs/clients.md."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grace.client import Client, InputError, Retry, Tls
from grace.client.retry import DEFAULT_RETRY
from grace.client.target import SERVICE_CONFIG, target_of
from support.known_server import REPLY, known_server
from support.retrieve_calls import METHOD, Counters, message
from support.server_process import PATIENCE_SECONDS, ServerProcess
from support.serving_files import ServingFiles

TIMEOUT = PATIENCE_SECONDS
CONFIG = SERVICE_CONFIG.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("addresses", "uri"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        (["[::1]:50051"], "[::1]:50051"),
        (["10.0.0.1:1", "10.0.0.2:2"], "ipv4:10.0.0.1:1,10.0.0.2:2"),
        (["[::1]:1", "[fe80::1%eth0]:2"], "ipv6:[::1]:1,[fe80::1%eth0]:2"),
    ],
)
def test_a_list_of_addresses_becomes_grpc_s_target(addresses: str | list[str], uri: str) -> None:
    assert target_of(addresses).uri == uri


def test_over_tls_several_servers_have_one_name() -> None:
    with pytest.raises(InputError, match="TLS needs one name; give the servers a name in DNS"):
        Client(["10.0.0.1:1", "10.0.0.2:1"], tls=Tls())


@pytest.mark.parametrize(
    ("addresses", "fault"),
    [
        ([], "addresses: an empty list; give at least one HOST:PORT"),
        (["a:1", "b:1"], "addresses a:1, b:1: a list must have IP addresses of one kind"),
        (["10.0.0.1:1", "[::1]:1"], "addresses 10.0.0.1:1, [::1]:1: a list must have IP addr"),
        (["10.0.0.1:1", "10.0.0.2"], "address '10.0.0.2': expected HOST:PORT, such as 127"),
    ],
)
def test_addresses_that_grpc_cannot_call_in_turn_are_refused(
    addresses: list[str], fault: str
) -> None:
    with pytest.raises(InputError) as refused:
        Client(addresses)
    assert str(refused.value).startswith(fault)


def test_the_client_s_own_retries_are_those_of_the_service_config() -> None:
    config = json.loads(CONFIG)
    (method,) = config["methodConfig"]
    policy, tokens = method["retryPolicy"], config["retryThrottling"]
    assert (
        Retry(
            max_attempts=policy["maxAttempts"],
            initial_backoff=float(policy["initialBackoff"].rstrip("s")),
            max_backoff=float(policy["maxBackoff"].rstrip("s")),
            backoff_multiplier=policy["backoffMultiplier"],
            max_tokens=tokens["maxTokens"],
            token_ratio=tokens["tokenRatio"],
        )
        == Retry()
        == DEFAULT_RETRY
    )
    (name,) = method["name"]
    assert f"/{name['service']}/{name['method']}" == METHOD


@contextmanager
def two_servers(files: ServingFiles) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    config = files.write_config("one_of_two.yaml", listen={"linger_seconds": 1.0})
    with ServerProcess(config) as first, ServerProcess(config) as second:
        yield first, second


def answered(server: ServerProcess) -> float:
    return Counters.of(server).ok


@pytest.mark.subprocess
def test_servers_are_called_in_turn_and_one_that_drains_or_dies_loses_no_call(
    serving_files: ServingFiles,
) -> None:
    request, stop = serving_files.requests[0], threading.Event()
    done: list[int] = []

    def keep_calling(client: Client) -> None:
        while not stop.is_set():
            done.append(client.retrieve(request, timeout=TIMEOUT).attempts)

    def more_calls(server: ServerProcess, number: int) -> None:
        made = len(done)
        server.wait_until(lambda: len(done) >= made + number, "calls go on")

    with two_servers(serving_files) as (first, second):
        addresses = [first.address, second.address]
        with Client(addresses) as client, ThreadPoolExecutor(3) as threads:
            assert client.address == ", ".join(addresses)
            client.wait_ready(TIMEOUT)
            calls = [threads.submit(keep_calling, client) for _ in range(3)]
            try:
                first.wait_until(lambda: min(answered(first), answered(second)) > 20, "both answer")
                first.terminate()
                assert first.wait() == 0
                more_calls(second, 20)
                port = int(first.address.rpartition(":")[2])
                back = serving_files.write_config("back.yaml", listen={"port": port})
                with ServerProcess(back) as third:
                    third.wait_until(lambda: answered(third) > 5, "it is called again")
                    second.kill()
                    more_calls(third, 20)
                    stop.set()
                    for call in calls:
                        call.result()
            finally:
                stop.set()


@pytest.mark.subprocess
def test_a_name_is_called_at_every_address_that_it_has(healthy_server: ServerProcess) -> None:
    """`localhost` may also be ::1, where no server listens."""
    address = healthy_server.address.replace("127.0.0.1", "localhost")
    with Client(address) as client:
        client.wait_ready(TIMEOUT)
        assert len(client.retrieve(user={"country": "US"}, timeout=TIMEOUT).ads) > 0


@contextmanager
def plain_call(target: str) -> Iterator[Any]:
    """Yield the method of gRPC's own client, with the service config."""
    options = (("grpc.service_config", CONFIG), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(target, options=options) as channel:
        yield channel.unary_unary(METHOD)


def test_grpc_s_own_retries_are_never_earlier_than_the_push_back() -> None:
    times: list[float] = []

    def answer(_request: bytes, context: Any) -> bytes:
        times.append(time.monotonic())
        if len(times) == 1:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "300"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "refused")
        return REPLY

    with known_server(answer, warm_up=0) as address, plain_call(address) as call:
        assert call(b"", timeout=TIMEOUT) == REPLY
    assert times[1] - times[0] >= 0.3


@pytest.mark.subprocess
def test_grpc_s_own_clients_leave_a_server_that_drains(serving_files: ServingFiles) -> None:
    request = message(serving_files.requests[0])
    with two_servers(serving_files) as (first, second):
        several = f"ipv4:{first.address},{second.address}"
        with plain_call(several) as call:
            first.wait_until(
                lambda: (
                    bool(call(request, timeout=TIMEOUT))
                    and min(answered(first), answered(second)) > 5
                ),
                "both answer",
            )
            first.terminate()
            while first.running:
                assert call(request, timeout=TIMEOUT)
            assert first.wait() == 0
            for _ in range(20):
                assert call(request, timeout=TIMEOUT)
