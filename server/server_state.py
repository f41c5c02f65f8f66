"""What the server is doing, and the pair that it serves. Only the event loop changes it."""

import time
from enum import IntEnum

from grace.proto.retrieval_pb2 import GetStatusResponse
from grace.server.engine.serving_pair import ServingPair
from grace.server.scheduling.pipeline import Pipeline

__all__ = ["Phase", "ServerState"]


class Phase(IntEnum):
    """The API's GetStatusResponse.State."""

    STARTING = GetStatusResponse.STATE_STARTING
    SERVING = GetStatusResponse.STATE_SERVING
    DRAINING = GetStatusResponse.STATE_DRAINING
    FAILED = GetStatusResponse.STATE_FAILED


class ServerState:
    """
    pair        the current one: batches are bound to what this holds when they form
    pipeline    None until ready
    takes       whether a call is taken in; while draining it is, for as long as the server lingers
    open_calls  Retrieve calls that have come in and whose replies have not gone out to the end
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.takes = False
        self.open_calls = 0
        self.pair: ServingPair | None = None
        self.pipeline: Pipeline | None = None
        self._started = time.monotonic()

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def waiting(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.waiting

    @property
    def in_flight(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.in_flight

    def current_pair(self) -> ServingPair:
        assert self.pair is not None, "a pipeline runs only once a pair is loaded"
        return self.pair
