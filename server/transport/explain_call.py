"""The call of Admin that explains one ad for one request.

A thread does the work, one explanation after another, next to the pipeline and not in it. So no
queue, prediction or metric of Retrieve sees it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from threading import BoundedSemaphore, Event
from time import perf_counter

import torch

from grace.configs.serving import ServingConfig
from grace.native.wire import SHORT_MESSAGES
from grace.server.errors import ServiceError, cancelled, refusal_of
from grace.server.messages import PendingRequest, RequestBatch, Retrieval
from grace.server.server_state import ServerState
from grace.server.stages.explanation import explain_ad
from grace.server.stages.requests import read_request
from grace.server.stages.stages import Stages
from grace.server.threads import DaemonThread
from grace.server.transport.listener.grpc_listener import GrpcContext

MOST_EXPLANATIONS = 8  # the most explanations that wait or are under way


class ExplainCall:
    """Answers calls of Explain. The event loop uses it, and one thread of it explains."""

    def __init__(self, state: ServerState, config: ServingConfig, stages: Stages) -> None:
        self._state = state
        self._limits, self._generation = config.limits, config.generation
        self._stages = stages
        self._places = BoundedSemaphore(MOST_EXPLANATIONS)
        self._thread = DaemonThread("grace-explain")

    async def reply(self, message: bytes, _: GrpcContext) -> bytes:
        """Return the bytes of an ExplainResponse, or raise a ServiceError."""
        self._state.require_takes()
        head, fault = SHORT_MESSAGES.read("ExplainRequest", message)
        if fault is not None:
            raise refusal_of(fault, "ExplainRequest")
        ad_id = head.number("ad_id")
        # As bytes: the generated class would drop some of what is wrong with them.
        retrieval = read_request(head.joined("request"), self._limits, self._generation)
        if not self._places.acquire(blocking=False):
            most = f"{MOST_EXPLANATIONS} calls of Explain wait or are under way, and no more may"
            raise ServiceError("too_many_explanations", f"{most}; try again later", None, 1.0)
        gone = Event()
        try:
            return await self._thread.run(lambda: self._explained(ad_id, retrieval, gone))
        except asyncio.CancelledError:  # at the deadline, too
            gone.set()
            raise

    def _explained(self, ad_id: int, retrieval: Retrieval, gone: Event) -> bytes:
        def require_waiting() -> None:
            if gone.is_set():
                raise cancelled()

        try:
            require_waiting()
            now = perf_counter()
            batch = RequestBatch(  # alone, in the smallest batch
                pair=self._state.served(),
                profile_name=retrieval.profile,
                profile=self._generation.profiles[retrieval.profile],
                bucket=min(self._generation.batch_buckets),
                requests=(PendingRequest(retrieval, now, now),),
            )
            device = batch.pair.device
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                reply = explain_ad(ad_id, batch, self._stages, self._stops_among, require_waiting)
            return reply.SerializeToString()
        finally:
            self._places.release()

    def _stops_among(self, levels: Mapping[str, int]) -> Mapping[str, int]:
        updates = self._state.updates
        return {} if updates is None else updates.stops_among(levels)
