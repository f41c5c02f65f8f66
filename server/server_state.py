"""The server's phase, its open calls and the pair that it serves."""

import time
from enum import IntEnum

from grace.proto.retrieval_pb2 import GetStatusResponse
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import ServingPair, Shown
from grace.server.errors import draining, not_ready
from grace.server.messages import Priority
from grace.server.observe.loop_lag import LoopLag
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.pipeline import Pipeline


class Phase(IntEnum):
    """Where the server is between start and end: the API's GetStatusResponse.State."""

    STARTING = GetStatusResponse.STATE_STARTING
    SERVING = GetStatusResponse.STATE_SERVING
    DRAINING = GetStatusResponse.STATE_DRAINING
    FAILED = GetStatusResponse.STATE_FAILED


class ServerState:
    """The server's state, which only the event loop changes."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        # whether it serves new calls, as it still does while it lingers before a drain
        self.takes = False
        self.open_calls = 0  # Retrieve calls whose replies have not been sent completely
        # the snapshot and the model that it serves; None until the first is loaded
        self.pair: ServingPair | None = None
        self.pipeline: Pipeline | None = None  # None until the server is ready
        self.updates: AdUpdates | None = None  # the updates of ads; None without a `state_dir`
        self.loop_lag = LoopLag()  # how late the event loop is
        self.timeline = Timeline()  # of the latest batches
        self.started = time.monotonic()

    def served(self) -> ServingPair:
        """Return the pair that the next batch is bound to. Any thread may ask."""
        assert self.pair is not None
        return self.pair

    def require_takes(self) -> None:
        """Raise the refusal of a server that does not serve new calls."""
        if self.phase == Phase.STARTING:
            raise not_ready()
        if not self.takes:
            raise draining()

    @property
    def waiting(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.scheduler.waiting

    @property
    def in_flight(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.scheduler.in_flight

    @property
    def margin(self) -> float:
        return 0.0 if self.pipeline is None else self.pipeline.scheduler.margin

    @property
    def update_sequence(self) -> int:
        return 0 if self.updates is None else self.updates.facts.sequence

    @property
    def visible_sequence(self) -> int:
        """The number of the last update whose puts and removals are served."""
        if self.updates is None or self.pair is None:
            return 0
        return self.updates.facts.visible(self.pair.shown.sequence)

    @property
    def shown(self) -> Shown:
        """The changes of ads that the served snapshot has."""
        return Shown(0) if self.pair is None else self.pair.shown

    @property
    def ads_stopped(self) -> int:
        """Ads of the served snapshot that are stopped."""
        return 0 if self.pair is None else self.pair.live.ads_stopped

    @property
    def fp8_clipped(self) -> int:
        """The count of numbers that the served model clipped to the range of fp8."""
        return 0 if self.pair is None else self.pair.model.generation.fp8_clipped

    def sheds(self, priority: Priority) -> bool:
        return self.pipeline is not None and self.pipeline.scheduler.sheds(priority)
