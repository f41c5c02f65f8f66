"""Clients of a server, for threads and for asyncio; docs/clients.md explains them."""

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from grace.client.connection import (
    OPTIONS,
    FailedCall,
    Tls,
    call_error,
    channel,
    connection_fault,
    lasting_fault,
)
from grace.client.request import RequestFields, request_of
from grace.client.request_json import request_of_json
from grace.client.result import RetrieveResult
from grace.client.retry import Attempts, RetryBudget
from grace.client.target import Addresses, target_of
from grace.configs.errors import CallError, InputError
from grace.proto import retrieval_pb2 as wire
from grace.proto.retrieval_pb2_grpc import AdsRetrievalStub

if TYPE_CHECKING:
    from grace.index.tables.ids import DataIds

SERVICE = "grace.v1.AdsRetrieval"
LOOK_AGAIN_SECONDS = 0.05
CHECK_SECONDS = 5.0
CLOSED = "this client is closed; create another one"
REMEDY = "see its log, or start it (grace serve)"


class _Connected:
    """The parts that both clients share: the servers, the access to them, and the retries."""

    _library: ClassVar[Any]  # grpc or grpc.aio

    def __init__(
        self,
        address: Addresses,
        tls: Tls | None = None,
        retry: bool = True,
        ids: "str | Path | DataIds | None" = None,
    ) -> None:
        """Connect at the first call, and again after a lost connection.

        address  HOST:PORT, or a list of IP:PORT; anything else is an InputError. The client calls
                 the addresses of a name or of a list in turn, except those that are not ready
        tls      None: plaintext
        retry    False: each call is one attempt
        ids      the data folder of the ads: texts in requests are then ids of its tables, and each
                 returned ad has its `item_id`. Several clients may share a DataIds
        """
        target = target_of(address, over_tls=tls is not None)
        self.address = target.shown
        self._tls = tls
        self._retry = retry
        if isinstance(ids, str | Path):
            from grace.index.tables.ids import DataIds  # noqa: PLC0415  # pyarrow takes 0.1 s

            ids = DataIds(ids)
        self._ids = ids
        self._budget = RetryBudget()
        self._closed = threading.Event()
        self._channel = channel(target.uri, tls, (*OPTIONS, *target.options), self._library)
        # The generated stubs have no types.
        self._retrieve = AdsRetrievalStub(self._channel).Retrieve  # type: ignore[no-untyped-call]
        self._check = HealthStub(self._channel).Check

    def _message(
        self,
        request: wire.RetrieveRequest | Mapping[str, Any] | None,
        fields: RequestFields,
        unknown_items: list[str],
    ) -> wire.RetrieveRequest:
        if request is None:
            return request_of(fields, self._ids, unknown_items)
        if fields:
            given = ", ".join(fields)
            raise InputError(f"a request and fields ({given}); put these into the request")
        if isinstance(request, wire.RetrieveRequest):
            return request
        return request_of_json(request)

    def _attempts(self, timeout: float) -> Attempts:
        self._require_open()
        return Attempts(self._budget, timeout, retries=self._retry)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise CallError("CANCELLED", "", CLOSED) from None

    def _remedy(self, error: grpc.RpcError) -> str:
        """Return the remedy after a failed health check. Raise what waiting cannot cure."""
        failed = FailedCall.of(error)
        if failed.code == "UNAVAILABLE" and not lasting_fault(self.address, failed.text):
            return connection_fault(self.address, failed.text, self._tls) or REMEDY
        if failed.code == "DEADLINE_EXCEEDED":
            return REMEDY
        raise call_error(self.address, self._tls, failed) from None

    def _never_ready(self, timeout: float, why: str) -> CallError:
        text = f"no server at {self.address} was ready within {timeout:g} s"
        return CallError("UNAVAILABLE", "", f"{text}; {why}")


class Client(_Connected):
    """A client for any number of threads.

    with Client("ads.example.com:50051", tls=Tls(ca=Path("ca.pem"))) as client:
        result = client.retrieve(user={"country": "US"}, max_ads=5, timeout=1.0)
        for ad in result.ads:
            print(ad.ad_id, ad.score)
    """

    _library: ClassVar[Any] = grpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections. Calls under way, also those of other threads, fail."""
        self._closed.set()
        self._channel.close()

    def retrieve(
        self,
        request: wire.RetrieveRequest | Mapping[str, Any] | None = None,
        *,
        timeout: float,
        **fields: Unpack[RequestFields],
    ) -> RetrieveResult:
        """Return the ads for a user; raise a CallError if there is no answer.

        request  a message, or the API's JSON; or else give `fields`
        timeout  seconds for the whole call, retries included. The server sees the deadline, too

        client.retrieve(user={"country": "US"}, sequences={"clicks": [ad.sid]}, timeout=1.0)
        """
        unknown: list[str] = []
        message = self._message(request, fields, unknown)
        attempts = self._attempts(timeout)
        while True:
            try:
                reply = self._retrieve(message, timeout=attempts.seconds_left)
            except grpc.RpcError as error:
                failed = FailedCall.of(error)
            except ValueError:  # another thread has closed the channel just now
                self._require_open()
                raise
            else:
                self._budget.give_back()
                return RetrieveResult.of(reply, attempts.number, self._ids, unknown)
            wait = attempts.wait_after(failed)
            if wait is None or self._closed.wait(wait):
                raise call_error(self.address, self._tls, failed, attempts=attempts.number)
            attempts.number += 1

    def is_ready(self, timeout: float = CHECK_SECONDS) -> bool:
        """Return whether the server's health is SERVING; False without a server.

        Raise a CallError if another service answers, or if the TLS settings of the two differ.
        """
        return self._why_not_ready(timeout) is None

    def wait_ready(self, timeout: float) -> None:
        """Wait until health is SERVING, whether or not there is a server yet."""
        end = time.monotonic() + timeout
        while why := self._why_not_ready(max(end - time.monotonic(), LOOK_AGAIN_SECONDS)):
            if time.monotonic() >= end:
                raise self._never_ready(timeout, why)
            time.sleep(LOOK_AGAIN_SECONDS)

    def _why_not_ready(self, timeout: float) -> str | None:
        """Return None if the server is ready, or else the remedy."""
        self._require_open()
        try:
            reply = self._check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeout)
        except grpc.RpcError as error:
            return self._remedy(error)
        except ValueError:
            self._require_open()
            raise
        return None if reply.status == health_pb2.HealthCheckResponse.SERVING else REMEDY


class AsyncClient(_Connected):
    """A client for asyncio. Create it inside the event loop that uses it.

    async with AsyncClient("127.0.0.1:50051") as client:
        result = await client.retrieve(user={"country": "US"}, max_ads=5, timeout=1.0)

    Cancelling a task cancels its call on the server, too.
    """

    _library: ClassVar[Any] = grpc.aio

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections. Calls under way fail."""
        self._closed.set()
        await self._channel.close()

    async def retrieve(
        self,
        request: wire.RetrieveRequest | Mapping[str, Any] | None = None,
        *,
        timeout: float,
        **fields: Unpack[RequestFields],
    ) -> RetrieveResult:
        """Return the ads for a user, as `Client.retrieve` does."""
        unknown: list[str] = []
        message = self._message(request, fields, unknown)
        attempts = self._attempts(timeout)
        while True:
            try:
                reply = await self._retrieve(message, timeout=attempts.seconds_left)
            except grpc.aio.AioRpcError as error:
                failed = FailedCall.of(error)
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                self._budget.give_back()
                return RetrieveResult.of(reply, attempts.number, self._ids, unknown)
            if (wait := attempts.wait_after(failed)) is not None:
                await asyncio.sleep(wait)
            if wait is None or self._closed.is_set():
                raise call_error(self.address, self._tls, failed, attempts=attempts.number)
            attempts.number += 1

    async def is_ready(self, timeout: float = CHECK_SECONDS) -> bool:
        """Return whether the server's health is SERVING, as `Client.is_ready` does."""
        return await self._why_not_ready(timeout) is None

    async def wait_ready(self, timeout: float) -> None:
        """Wait until health is SERVING, whether or not there is a server yet."""
        end = time.monotonic() + timeout
        while why := await self._why_not_ready(max(end - time.monotonic(), LOOK_AGAIN_SECONDS)):
            if time.monotonic() >= end:
                raise self._never_ready(timeout, why)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _raise_if_closed(self) -> None:
        """Raise a CallError if `close` has ended the call, and not the caller's own `cancel`."""
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            self._require_open()

    async def _why_not_ready(self, timeout: float) -> str | None:
        self._require_open()
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            reply = await self._check(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return self._remedy(error)
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        return None if reply.status == health_pb2.HealthCheckResponse.SERVING else REMEDY
