"""The server's listeners in the test's process, over a pipeline that computes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import torch

from grace.configs.serving import (
    AdminConfig,
    LimitsConfig,
    ListenConfig,
    MetricsConfig,
    ServingConfig,
)
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.messages import Answer, PendingRequest
from grace.server.observe.metrics import Metrics
from grace.server.reload.fresh import Fresh
from grace.server.reload.loading import Loader
from grace.server.reload.reloads import Reloads
from grace.server.scheduling.pipeline import Pipeline
from grace.server.server_state import Phase, ServerState
from grace.server.stages.stages import STAGES
from grace.server.transport.admin import Admin
from grace.server.transport.certificates import WatchedCredentials
from grace.server.transport.front_end import FrontEnd
from grace.server.transport.listeners import Listeners
from support.pipeline_cases import GENERATION

front_ends = pytest.mark.parametrize(
    "front_ends", [0, 2], ids=("gRPC in the server", "in two relays")
)
"""Where gRPC runs, for promises that must not depend on it: the value of `listen.front_ends`."""

METHOD = "/grace.v1.AdsRetrieval/Retrieve"
PADDING = "x" * 65_536  # of every reply, unless a test asks for less


class Echo:
    """A pipeline that answers when the test says so, at once by default."""

    waiting = in_flight = 0
    margin = 0.0

    def __init__(self, padding: str) -> None:
        self.scheduler = self
        self.padding = padding
        self.answers = True
        self.taken: list[PendingRequest] = []
        self.cancelled: list[PendingRequest] = []
        self.front_end: FrontEnd

    def submit(self, request: PendingRequest) -> None:
        self.taken.append(request)
        if self.answers:
            self.answer()

    def cancel(self, request: PendingRequest) -> None:
        self.cancelled.append(request)

    def answer(self) -> None:
        """Reply to each request taken, with its id and the padding."""
        taken, self.taken = self.taken, []
        ids = [request.retrieval.request_id for request in taken]
        replies = [RetrieveResponse(request_id=each, ignored_names=[self.padding]) for each in ids]
        encoded = [reply.SerializeToString() for reply in replies]
        self.front_end.ended(list(map(Answer, taken, encoded)))


class Service:
    """Listeners with these settings of `listen`, and front end; `died` is set if a relay dies."""

    def __init__(
        self,
        limits: LimitsConfig,
        settle_seconds: float = 0.2,
        padding: str = PADDING,
        reply_seconds: float = 60.0,
        **listen: Any,
    ) -> None:
        config = ServingConfig(
            snapshots=Path(),
            checkpoint=Path(),
            generation=GENERATION,
            listen=ListenConfig(port=0, reply_seconds=reply_seconds, **listen),
            admin=AdminConfig(port=0),
            metrics=MetricsConfig(port=0),
            limits=limits,
        )
        self.state, self.pipeline, self.died = ServerState(), Echo(padding), asyncio.Event()
        self.metrics = Metrics(self.state, torch.device("cpu"))
        self.credentials = WatchedCredentials(config, self.metrics.credentials_loaded)
        self.front_end = FrontEnd(self.state, config, self.metrics)
        self.pipeline.front_end = self.front_end
        self.state.pipeline = cast("Pipeline", self.pipeline)
        self.state.phase, self.state.takes = Phase.SERVING, True
        died = self.died.set
        loader = Loader(config, torch.device("cpu"), STAGES, (), None)
        reloads = Reloads(loader, self.state, self.metrics, died)
        fresh = Fresh(reloads.serve_changes, self.state, 0.0)
        admin = Admin(self.state, config, reloads, fresh, STAGES)
        self.listeners = Listeners(
            config, self.front_end, admin, died, self.credentials, settle_seconds
        )
        self.address = ""
        self.retrieve: Any = None  # the method of a client

    def count(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None
        return value


def served(
    use: Callable[[Service, Any], Awaitable[None]],
    limits: LimitsConfig | None = None,
    **settings: Any,
) -> None:
    """Call `use` with a service and the Retrieve method of a client of it."""

    async def serve() -> None:
        service = Service(limits or LimitsConfig(), **settings)
        try:
            opening = service.listeners.open(service.metrics.registry, service.state)
            service.address = await opening
            async with grpc.aio.insecure_channel(service.address) as channel:
                service.retrieve = channel.unary_unary(METHOD)
                await use(service, service.retrieve)
        finally:
            await service.listeners.close()

    asyncio.run(asyncio.wait_for(serve(), 120))


def serving(
    limits: LimitsConfig | None = None, *, everywhere: bool = False, **settings: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Let a test run with a service, its first argument.

    everywhere  once with gRPC in the server, and once with gRPC in relays
    """

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(**given: Any) -> None:
            relays = {"front_ends": given.pop("front_ends")} if everywhere else {}
            served(lambda service, _: test(service, **given), limits, **settings, **relays)

        _, *fixtures = signature(test).parameters.values()
        relays = [Parameter("front_ends", Parameter.KEYWORD_ONLY)] if everywhere else []
        run.__signature__ = Signature([*fixtures, *relays])  # type: ignore[attr-defined]
        return front_ends(run) if everywhere else run

    return decorated


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def reason_of(call: Any) -> str:
    """Return the reason that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(dict(caught.value.trailing_metadata())["grace-reason"])
