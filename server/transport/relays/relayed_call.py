"""A call that a relay holds: its context for the front end, and the task that answers it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import grpc

from grace.server.errors import internal
from grace.server.observe.logs import LOGGER
from grace.server.transport.front_end import Call, FrontEnd
from grace.server.transport.listener.grpc_listener import Trailers
from grace.server.transport.relays.frames import Kind, Link, RelayedMessage

_LOG = logging.getLogger(LOGGER)


class RelayedCall:
    """The front end's `Context` of the call. It exists until the relay reports the call's end."""

    def __init__(self, front_end: FrontEnd, link: Link, number: int, body: bytes) -> None:
        self._link = link
        self._number = number
        self._callbacks: list[Callable[[Any], None]] = []
        self.unread = False
        given = RelayedMessage.unpack(body)
        call = Call(
            *(given.message, given.arrived, given.deadline, given.connection),
            *(given.authorization, given.traceparent),
        )
        front_end.opened(call, self)  # now: the next frame may be the end of another call
        self._task = asyncio.create_task(self._answer(front_end, call))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn:
        failure = (code.value[0], details, trailing_metadata)
        self._link.send_facts(Kind.FAILURE, self._number, failure)
        raise _AbortedError

    async def _answer(self, front_end: FrontEnd, call: Call) -> None:
        with suppress(_AbortedError):
            try:
                self._link.send(Kind.REPLY, self._number, await front_end.answer(call, self))
            except Exception as error:  # noqa: BLE001, a caller waits, and must not see its text
                _LOG.error("call_failed", exc_info=error)
                failure = internal()
                await self.abort(failure.code, failure.text, failure.trailers)

    def ended(self) -> None:
        """Note that gRPC is done with the call: its reply is out, or its caller has gone."""
        if self._task.done():
            for callback in self._callbacks:
                callback(self)
        else:  # cancelled after its first step: a task that never began would count nothing
            self._task.add_done_callback(lambda _: self.ended())
            asyncio.get_running_loop().call_soon(self._task.cancel)


class _AbortedError(BaseException):
    """Ends the task of a call that has failed."""
