"""Puts and removals of ads: a snapshot with them, and when the server makes the next one.

Changes that wait are applied together, to a copy in memory of the served snapshot. The next batch
uses it, as after a reload. Every load ends with the same function, so nothing is lost. The copy
takes the memory of the snapshot that was served before, where its size fits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from grace.configs.errors import GraceError
from grace.configs.machine import available_cores
from grace.index.allocation import free_kept, kept_bytes, reused_memory
from grace.index.changes.applied import applied
from grace.index.changes.change import Changes
from grace.index.snapshot import Snapshot
from grace.index.storage import root_of, versions
from grace.index.storage.reader import open_snapshot
from grace.index.updates.puts import take_puts
from grace.server.ad_updates import AdUpdates
from grace.server.engine.memory import require_memory_of_changes
from grace.server.engine.serving_pair import Shown
from grace.server.errors import ServiceError
from grace.server.observe.logs import LOG
from grace.server.server_state import ServerState
from grace.server.threads import daemon_thread

CORES_PER_THREAD = 8
"""With a thread per 4 cores, P99 at 400 requests a second was 1.7 times that without changes; with
one per 8 cores, 1.2 times."""

MOST_AT_ONCE = 200_000
"""The most changes that are applied in one step: their rows are in memory several times."""

RETRY_SECONDS = 30.0
"""How long the server waits for a change. Then it tries again if the last attempt failed, or else
frees the memory that it keeps for the next change."""

_MOST_LOGGED = 10


def with_changes(
    snapshot: Snapshot, shown: Shown, updates: AdUpdates, device: torch.device
) -> tuple[Snapshot, Shown]:
    """Return a snapshot with all kept changes. `shown` says which of them the given one has.

    A put that the snapshot cannot take changes nothing. Raise ConfigError for too little memory.
    """
    sequence, changes = updates.changes_after(shown.sequence)
    left = iter(changes)
    while step := dict(islice(left, MOST_AT_ONCE)):
        snapshot, shown = _with_some(snapshot, shown, step, device)
    return snapshot, replace(shown, sequence=max(shown.sequence, sequence))


def _with_some(
    snapshot: Snapshot, shown: Shown, step: Mapping[int, bytes | None], device: torch.device
) -> tuple[Snapshot, Shown]:
    threads = max(1, available_cores() // CORES_PER_THREAD)
    rows = {ad_id: row for ad_id, row in step.items() if row is not None}
    require_memory_of_changes(snapshot, sum(map(len, rows.values())), device)
    taken = take_puts(snapshot, [*rows.values()], threads)
    ids = [*rows]
    faults = {ids[each.place]: each for each in taken.refused}
    if faults:
        some = [{"ad_id": ad_id, "column": each.column} for ad_id, each in faults.items()]
        LOG.error("puts_refused", extra={"puts": len(faults), "some": some[:_MOST_LOGGED]})
    removed = np.sort(np.array([ad_id for ad_id in step if ad_id not in rows], np.int64))
    first, *others = taken.pieces or (Changes(),)
    for changes in (replace(first, removed=removed), *others):
        if len(changes.removed) or changes.puts is not None:
            snapshot = applied(snapshot, changes, threads, reused_memory)
    put = np.sort(np.array(taken.ids, np.int64))
    refused = {ad_id: text for ad_id, text in shown.refused.items() if ad_id not in step}
    return snapshot, Shown(
        shown.sequence,
        np.union1d(np.setdiff1d(shown.put, removed, assume_unique=True), put),
        np.union1d(np.setdiff1d(shown.removed, put, assume_unique=True), removed),
        refused | {ad_id: each.text for ad_id, each in faults.items()},
    )


def lowest_watermark(snapshots: Path) -> int:
    """Return the number of the last update that all versions have: rollbacks need later ones."""
    found = []
    for version in versions(root_of(snapshots)):
        with suppress(GraceError), open_snapshot(root_of(snapshots), version) as opened:
            found.append(opened.manifest.updates_watermark)
    return min(found, default=0)


class Fresh:
    """Asks for the next snapshot when changes wait. It belongs to the event loop."""

    def __init__(
        self,
        serve: Callable[[], Awaitable[str]],  # returns why it could not serve the changes, or ""
        state: ServerState,
        min_seconds: float,  # the shortest time from the start of one call of `serve` to the next
    ) -> None:
        self.fault = ""  # why changes could not be served, with a remedy; empty if all is well
        self._serve, self._state, self._min_seconds = serve, state, min_seconds
        self.changed = asyncio.Event()  # set when changes wait
        self._tried = 0  # the last update whose changes the last call of `serve` could see
        self._served = asyncio.Condition()

    async def watch(self) -> None:
        """Serve changes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(RETRY_SECONDS):
                    await self.changed.wait()
            except TimeoutError:
                if not self.fault:
                    if kept_bytes():
                        with suppress(RuntimeError):  # there is no thread: it is freed later
                            daemon_thread("grace-free", free_kept).start()
                    continue
            self.changed.clear()
            next_turn = loop.time() + self._min_seconds
            await self._serve_once()
            await asyncio.sleep(next_turn - loop.time())

    async def until_visible(self, sequence: int, despite_faults: bool = False) -> None:
        """Wait until an update's changes are served, or an attempt to do so has failed.

        With `despite_faults`, a failed attempt does not end the wait.
        """
        async with self._served:
            await self._served.wait_for(
                lambda: (
                    self._state.visible_sequence >= sequence
                    or (self.fault and self._tried >= sequence and not despite_faults)
                )
            )

    async def _serve_once(self) -> None:
        in_force = self._state.update_sequence
        try:
            self.fault = await self._serve()
        except ServiceError as error:  # the server shuts down
            self.fault = error.text
        except Exception as error:  # noqa: BLE001, the next attempt may succeed
            self.fault = f"internal error ({type(error).__name__}); see changes_broke in the log"
            LOG.error("changes_broke", exc_info=error)
        async with self._served:
            self._tried = in_force
            self._served.notify_all()
