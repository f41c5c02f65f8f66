"""The parts of a server that update ads: the state, and the file that it follows, if any."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from grace.configs.serving import ServingConfig
from grace.server.engine.serving_pair import ServingPair
from grace.server.observe.logs import LOGGER
from grace.server.observe.metrics import Metrics
from grace.server.updates.ad_updates import AdUpdates
from grace.server.updates.updates_file import UpdatesFile

_LOG = logging.getLogger(LOGGER)


class Updates:
    """Holds these parts. Without a `state_dir` it holds none, and its methods do nothing.

    ads   the state of updates; None without a `state_dir`
    file  the follower of `updates.file`; None without that setting
    """

    def __init__(
        self,
        config: ServingConfig,
        metrics: Metrics,
        settle: Callable[[], None],
        died: Callable[[], None],
    ) -> None:
        self.ads: AdUpdates | None = None
        self.file: UpdatesFile | None = None
        if config.state_dir is None:
            return
        self.ads = AdUpdates(config.state_dir, config.updates, settle, metrics.updated, died)
        if (path := config.updates.file) is not None:
            self.file = UpdatesFile(path, self.ads, metrics.updated)

    def start(self) -> None:
        for part in (self.ads, self.file):
            if part is not None:
                part.start()

    def attach(self, pair: ServingPair) -> None:
        """Show all updates on a pair, before it serves."""
        if self.ads is not None:
            self.ads.attach(pair)

    async def complete(self) -> None:
        """Wait for the updates without which the server must not be ready."""
        waits: list[Future[Any]] = []
        if self.ads is None:
            fields = {"refused": "stops, weights and rollbacks", "remedy": "set state_dir"}
            _LOG.warning("no_state_dir", extra=fields)
        else:
            if not self.ads.complete.done():
                _LOG.warning("awaits_full")
            waits.append(self.ads.complete)
        if self.file is not None:
            waits.append(self.file.caught_up)
        await asyncio.gather(*map(asyncio.wrap_future, waits))

    def close(self, seconds: float) -> None:
        """Refuse updates from now on, and wait for those that are being carried out."""
        for part in (self.file, self.ads):
            if part is not None:
                part.close(seconds)
