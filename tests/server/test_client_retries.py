"""The Python clients try again when it may help, as late as the server asks, and never too long."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from grace.client import AsyncClient, Client
from grace.client.connection import FailedCall
from grace.client.retry import FIRST_WAIT, MAX_ATTEMPTS, Attempts, RetryBudget
from grace.configs.errors import CallError, InputError
from support.known_server import REPLY, known_server
from support.occupied import occupied_engine
from support.retrieve_calls import Caller, Counters, assert_counters_conserve
from support.server_process import PATIENCE_SECONDS, ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

TIMEOUT = PATIENCE_SECONDS


@contextmanager
def refusing_server(
    refusals: int, code: grpc.StatusCode, *trailers: tuple[str, str]
) -> Iterator[tuple[str, list[float]]]:
    """Refuse this many calls, then answer. Yield the address, and the times of all calls."""
    times: list[float] = []

    def answer(_request: bytes, context: Any) -> bytes:
        times.append(time.monotonic())
        if len(times) <= refusals:
            context.set_trailing_metadata(trailers)
            context.abort(code, "refused")
        return REPLY

    with known_server(answer, warm_up=0) as address:
        yield address, times


@contextmanager
def occupied(server: ServerProcess, request: dict[str, Any]) -> Iterator[None]:
    """Occupy the engine with two calls of another connection; they succeed after leaving."""
    caller = Caller(server.address)
    with occupied_engine(server, caller, request) as taken:
        yield
    assert [call.outcome().ok for call in taken] == [True] * OTHERS
    caller.close()


AttemptsOf = Callable[..., int]


def of_threads(address: str, timeout: float, **settings: Any) -> int:
    """Return the attempts of a call of a Client."""
    with Client(address, **settings) as client:
        return client.retrieve(timeout=timeout).attempts


def of_tasks(address: str, timeout: float, **settings: Any) -> int:
    """Return the attempts of a call of an AsyncClient."""

    async def call() -> int:
        async with AsyncClient(address, **settings) as client:
            return (await client.retrieve(timeout=timeout)).attempts

    return asyncio.run(call())


@pytest.fixture(params=[of_threads, of_tasks], ids=["Client", "AsyncClient"])
def attempts_of(request: pytest.FixtureRequest) -> AttemptsOf:
    of: AttemptsOf = request.param
    return of


OTHERS = 2
EXHAUSTED, UNAVAILABLE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE
OVERLOADED = ("grace-reason", "overloaded")


def test_the_next_attempt_is_never_earlier_than_the_push_back() -> None:
    advice = (OVERLOADED, ("grpc-retry-pushback-ms", "300"))
    with refusing_server(2, EXHAUSTED, *advice) as (address, times), Client(address) as client:
        result = client.retrieve(timeout=TIMEOUT)
    assert (result.attempts, len(times)) == (3, 3)
    assert min(times[1] - times[0], times[2] - times[1]) >= 0.3
    assert result.ads.ad_ids.tolist() == [3, 1, 2]


CODE = grpc.StatusCode


def because(reason: str) -> tuple[tuple[str, str], ...]:
    return (("grace-reason", reason),)


@pytest.mark.parametrize(
    ("code", "trailers", "attempts"),
    [
        (UNAVAILABLE, because("not_ready"), 2),
        (UNAVAILABLE, because("draining"), 2),
        (UNAVAILABLE, (), 2),
        (CODE.CANCELLED, (), 2),
        (CODE.INTERNAL, because("stage_died"), 2),
        (EXHAUSTED, (OVERLOADED, ("grpc-retry-pushback-ms", "9000")), 1),  # beyond the deadline
        (EXHAUSTED, (OVERLOADED, ("grpc-retry-pushback-ms", "-1")), 1),
        (UNAVAILABLE, (("grpc-retry-pushback-ms", "soon"),), 1),
        (UNAVAILABLE, (("grpc-retry-pushback-ms", "9" * 400),), 1),
        (EXHAUSTED, (), 1),
        (CODE.INVALID_ARGUMENT, because("invalid_field"), 1),
        (CODE.FAILED_PRECONDITION, because("wrong_model"), 1),
        (CODE.UNAUTHENTICATED, because("unauthenticated"), 1),
        (CODE.DEADLINE_EXCEEDED, because("deadline_unmeetable"), 1),
        (CODE.INTERNAL, because("internal"), 1),
        (CODE.INTERNAL, because("not_finite"), 1),
        (CODE.UNIMPLEMENTED, (), 1),
    ],
)
def test_only_what_may_pass_is_tried_again_and_nothing_if_retries_are_off(
    attempts_of: AttemptsOf,
    code: grpc.StatusCode,
    trailers: tuple[tuple[str, str], ...],
    attempts: int,
) -> None:
    with refusing_server(1, code, *trailers) as (address, times):
        if attempts == 2:
            assert attempts_of(address, timeout=TIMEOUT) == 2
            times.clear()
        with pytest.raises(CallError) as refused:
            attempts_of(address, timeout=8.0, **({} if attempts == 1 else {"retry": False}))
        assert refused.value.code == code.name
        assert refused.value.reason == dict(trailers).get("grace-reason", "")
        assert (refused.value.attempts, len(times)) == (1, 1)


def test_many_refusals_end_the_retries_of_a_client() -> None:
    """Each call takes four of 100 tokens. With less than half of them left, it is one attempt."""
    with refusing_server(10**6, UNAVAILABLE) as (address, times), Client(address) as client:
        for _ in range(15):
            with pytest.raises(CallError):
                client.retrieve(timeout=TIMEOUT)
        assert len(times) == 12 * MAX_ATTEMPTS + 2 + 1 + 1


def test_cancelling_a_task_cancels_its_call_and_its_retries(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
    before = Counters.of(server)

    async def cancelled(task: "asyncio.Task[Any]") -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def cancel_both(refusing: str, times: list[float]) -> None:
        async with AsyncClient(server.address) as client, AsyncClient(refusing) as refused:
            waiting = asyncio.create_task(client.retrieve(request, timeout=TIMEOUT))
            while server.metric("grace_queue_depth") < 1:
                await asyncio.sleep(0.001)
            await cancelled(waiting)
            retrying = asyncio.create_task(refused.retrieve(request, timeout=TIMEOUT))
            while not times:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            await cancelled(retrying)

    advice = (OVERLOADED, ("grpc-retry-pushback-ms", "9000"))
    with refusing_server(1, EXHAUSTED, *advice) as (refusing, times):
        with occupied(server, request):
            asyncio.run(cancel_both(refusing, times))
        assert len(times) == 1
    seen = assert_counters_conserve(server, 1 + OTHERS, before)
    assert seen.ends["cancelled"] == 1


def test_closing_a_client_ends_its_calls_and_retries(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    advice = (OVERLOADED, ("grpc-retry-pushback-ms", "9000"))
    with (
        refusing_server(10, EXHAUSTED, *advice) as (address, times),
        occupied(faulty_server, serving_files.requests[0]),
        ThreadPoolExecutor(2) as threads,
    ):
        refused, held = Client(address), Client(faulty_server.address)
        calls = [threads.submit(each.retrieve, timeout=TIMEOUT) for each in (refused, held)]
        faulty_server.wait_until(
            lambda: bool(times) and faulty_server.metric("grace_queue_depth") == 1, "both are out"
        )
        for client, call, code in zip(
            (refused, held), calls, ("RESOURCE_EXHAUSTED", "CANCELLED"), strict=True
        ):
            client.close()
            with pytest.raises(CallError, match=code):
                call.result()
            with pytest.raises(CallError, match="this client is closed; create another one"):
                client.retrieve(timeout=TIMEOUT)


def test_calls_of_other_threads_fail_with_a_call_error_when_a_client_closes() -> None:
    with known_server(lambda *_: REPLY, warm_up=0) as address:
        for _ in range(20):
            client, begun = Client(address), threading.Semaphore(0)

            def call_until_it_fails(
                client: Client = client, begun: threading.Semaphore = begun
            ) -> None:
                while True:
                    client.retrieve(timeout=TIMEOUT)
                    begun.release()

            with ThreadPoolExecutor(8) as threads:
                calls = [threads.submit(call_until_it_fails) for _ in range(8)]
                assert begun.acquire(timeout=TIMEOUT)
                client.close()
            for call in calls:
                with pytest.raises(CallError, match="CANCELLED"):
                    call.result()


def test_waits_grow_and_differ_between_clients() -> None:
    failed = FailedCall("UNAVAILABLE", "draining", "")
    waits = []
    for _ in range(100):
        attempts = Attempts(RetryBudget(), 60.0)
        for number in range(1, MAX_ATTEMPTS):
            attempts.number = number
            wait = attempts.wait_after(failed)
            assert wait is not None
            longest = FIRST_WAIT * 2 ** (number - 1)
            assert longest / 2 <= wait <= longest
            waits.append(wait)
        attempts.number = MAX_ATTEMPTS
        assert attempts.wait_after(failed) is None
    assert len(set(waits)) > len(waits) / 2


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InputError, match=r"^timeout: "):
        client.retrieve(timeout=timeout)
