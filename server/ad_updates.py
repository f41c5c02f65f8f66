"""Applies updates of ads, one group after another.

One thread takes all updates that wait as a group, and carries the group out in these steps:

    read      refuse what is faulty: whole updates, or single puts
    log       write and sync the whole group at once; an update that fails here is not in force
    publish   change the state, and the view of every attached snapshot
    settle    wait until every batch that was matched under an older view is answered
    reply     complete the callers' futures

So no reply that follows an update's has an ad that it stopped, and an update outlasts the process.
Puts and removals are kept then, and reload/fresh.py serves them soon.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias, get_args

import numpy as np

from grace.configs.errors import ConfigError, GraceError, RequestError
from grace.configs.serving import UpdatesConfig
from grace.index.snapshot import Snapshot
from grace.index.updates.id_map import IdMap
from grace.index.updates.live_ads import LiveAds
from grace.index.updates.log import NotKeptError, UpdateLog
from grace.index.updates.puts import read_kept
from grace.index.updates.state import (
    GapError,
    UpdateState,
    require_after,
    require_numbers_left,
    require_room,
    touched_by,
)
from grace.index.updates.update import AdUpdate, Change, Ids
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError, draining, internal, refusal_of
from grace.server.observe.logs import LOG
from grace.server.threads import daemon_thread
from grace.server.waiting_updates import Parts, Updated, Waiting

UpdateResult: TypeAlias = Literal["applied", "repeated", "refused", "failed", "part"]
UPDATE_RESULTS: tuple[UpdateResult, ...] = get_args(UpdateResult)
PutResult: TypeAlias = Literal["taken", "refused"]
PUT_RESULTS: tuple[PutResult, ...] = get_args(PutResult)

FOLDER = "ad_updates"
"""The folder of the log, in `state_dir`."""

MOST_WAITING, MOST_WAITING_BYTES = 4096, 256 << 20

PATIENCE_SECONDS = 1.0
"""How long a DELTA waits for missing earlier ones: calls of one client may overtake each other."""


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """The numbers of the state that GetStatus and the metrics report."""

    sequence: int
    stopped: Mapping[str, int]  # number of ids by level
    weights: int
    awaits_full: bool
    last_change: int  # the number of the last update that changed ads
    rebased: int  # the number of the last update that took changes back

    def visible(self, shown: int) -> int:
        """Return the last update whose changes are served by a snapshot that shows `shown`."""
        return self.sequence if shown >= self.last_change else min(shown, self.sequence)


class AdUpdates:
    """The state of updates, its log, and the snapshots that show it.

    Any thread may call `submit` and `attach`.
    """

    def __init__(
        self,
        state_dir: Path,
        config: UpdatesConfig,
        settle: Callable[[], None],  # waits until all batches that post works on are answered
        # called with a result and the number of updates that ended with it
        count: Callable[[UpdateResult, int], None],
        died: Callable[[], None],  # called if a fault ends the thread
        # returns the served snapshot, for which puts are read; None before there is one
        served: Callable[[], Snapshot | None] = lambda: None,
        count_puts: Callable[[PutResult, int], None] = lambda _, __: None,
        changed: Callable[[], object] = lambda: None,  # called after updates that put or remove ads
    ) -> None:
        """Read the log.

        Raise InputError if the log is damaged, or if another server uses it, and ConfigError if the
        folder cannot have one.
        """
        self._settle, self._count, self._died = settle, count, died
        self._served, self._count_puts, self._changed_ads = served, count_puts, changed
        self._state = UpdateState()
        folder = state_dir / FOLDER
        try:
            self._log = UpdateLog(folder, lambda message: self._state.apply(read_kept(message)))
        except OSError as error:
            fault = f"{error.strerror}; name a local folder that the server may write to"
            raise ConfigError(f"state_dir: {folder}: {fault}") from None
        self._publishing = threading.Lock()  # guards the state, and the set of attached snapshots
        self._attached: weakref.WeakSet[LiveAds] = weakref.WeakSet()
        self._awaits_full = config.require_full and self._state.sequence == 0
        # Done once the server need not wait for a FULL update, or need not wait for its sender.
        self.complete: Future[None] = Future()
        self.sent: Future[None] = Future()
        if not config.await_sender:
            self.sent.set_result(None)
        self._note_facts()
        self._changed = threading.Condition()  # guards the five that follow
        self._waiting: list[Waiting] = []
        self._early: list[Waiting] = []
        self._held = self._held_bytes = 0  # of both, and of the group that is being carried out
        self._closed = False
        self._parts = Parts()
        self._thread = daemon_thread("grace-updates", self._run)
        facts = {"sequence": self.facts.sequence, "stopped": self.facts.stopped}
        facts |= {"weights": self.facts.weights, "awaits_full": self._awaits_full}
        LOG.info("updates_read", extra={**facts, "cut": self._log.cut})

    def start(self) -> None:
        self._thread.start()

    async def until_complete(self) -> None:
        """Wait for the updates without which the server must not be ready."""
        for event, wait in (("awaits_full", self.complete), ("awaits_sender", self.sent)):
            if not wait.done():
                LOG.warning(event)
            await asyncio.wrap_future(wait)

    def close(self, seconds: float) -> None:
        """Refuse updates from now on, and wait for those that are being carried out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if not self._thread.is_alive():
            self._log.close()

    def attach(self, pair: ServingPair) -> None:
        """Show the state on a pair from now on. Call this before the pair serves.

        Nothing detaches a pair: it shows every update until its last batch has released it.
        """
        with self._publishing:
            pair.live.rebuild(self._state)
            self._attached.add(pair.live)
        watermark = pair.snapshot.facts.updates_watermark
        if watermark > self._state.sequence:
            facts = {"watermark": watermark, "sequence": self._state.sequence}
            LOG.warning("updates_behind", extra=facts)

    def changes_after(self, shown: int) -> tuple[int, list[Change]]:
        """Return the number of the last update, and the changes of updates later than `shown`."""
        with self._publishing:
            return self._state.sequence, self._state.ads.after(shown)

    def drop_changes(self, through: int) -> None:
        """Forget the changes up to an update: every snapshot that may be served has them."""
        with self._publishing:
            dropped = self._state.ads.drop(through)
        if dropped:
            LOG.info("changes_dropped", extra={"changes": dropped, "sequence": through})

    def stops_among(self, levels: Mapping[str, int]) -> dict[str, int]:
        """Return the ids, by level, that are stopped now."""
        with self._publishing:
            stopped = self._state.stopped
            return {
                level: given
                for level, given in levels.items()
                if level in stopped and stopped[level].of(np.array([given])).all()
            }

    def submit(self, message: bytes) -> "Future[Updated]":
        """Take the bytes of an UpdateAdsRequest, and return a future of its result.

        The future is done once no later reply can show an older state, or fails with ServiceError.
        """
        waiting = Waiting(message, perf_counter())
        with self._changed:
            if self._closed:
                raise draining()
            held, size = self._held, self._held_bytes + len(message)
            if held >= MOST_WAITING or (held and size > MOST_WAITING_BYTES):
                text = f"{held} updates wait, and no more may; send this one later"
                raise ServiceError("too_many_updates", text, retry_seconds=PATIENCE_SECONDS)
            self._waiting.append(waiting)
            self._held, self._held_bytes = held + 1, size
            self._changed.notify_all()
        return waiting.done

    def confirm(self, sequence: int) -> int:
        """Note that all updates up to this one were sent. Return the last that is in force."""
        in_force = self.facts.sequence
        if sequence <= in_force and not self.sent.done():
            self.sent.set_result(None)
        return in_force

    def stopped_ids(self, level: str, after: int | None, most: int) -> tuple[Ids, int]:
        """Return stopped ids of a level as `IdMap.sorted_ids`, and the number of the last update.

        It may wait while an update is published, so the event loop must not call it.
        """
        with self._publishing:
            stopped = self._state.stopped.get(level, IdMap(np.False_))
            return stopped.sorted_ids(after, most), self._state.sequence

    def _run(self) -> None:
        group: list[Waiting] = []
        failure = draining()
        try:
            while group := self._take():
                self._carry_out(group)
        except BaseException as error:  # noqa: BLE001, the log and the state may differ now
            failure = internal()
            self._died()
            LOG.critical("updates_died", exc_info=error)
        with self._changed:
            self._closed = True
        for waiting in (*group, *self._early, *self._waiting):
            if not waiting.done.done():
                self._fail(waiting, failure, "failed")

    def _take(self) -> list[Waiting]:
        """Wait for updates, or until an early one has waited for too long. None: it is closed."""
        with self._changed:
            held = [*self._early, *self._waiting]
            self._held, self._held_bytes = len(held), sum(len(each.message) for each in held)
            seconds = None
            if self._early:
                oldest = min(each.arrived for each in self._early)
                seconds = max(0.0, oldest + PATIENCE_SECONDS - perf_counter())
            self._changed.wait_for(lambda: self._waiting or self._closed, seconds)
            if self._closed:
                return []
            group = [*self._early, *self._waiting]
            self._early, self._waiting = [], []
            return group

    def _carry_out(self, group: list[Waiting]) -> None:
        ordered = sorted(filter(self._read, group), key=lambda each: each.sequence)
        news, repeated = self._sorted_out(ordered)
        if news:
            try:
                self._log.append([part.kept for each in news for part in each.parts])
            except NotKeptError as error:
                fault, ended = str(error), [*news, *repeated]
                LOG.error("updates_not_kept", extra={"updates": len(ended), "fault": fault})
                for each in ended:
                    self._fail(each, ServiceError("update_not_kept", fault), "failed")
                return
            self._publish([update for each in news for update in each.updates])
            self._settle()
        for applied, ended in ((True, news), (False, repeated)):
            self._count("applied" if applied else "repeated", len(ended))
            for each in ended:
                self._end(each, applied)
        if news:
            facts = self.facts
            fields = {"updates": len(news), "sequence": facts.sequence, "weights": facts.weights}
            LOG.info("ads_updated", extra={**fields, "stopped": facts.stopped})
            self._rewrite_if_large()

    def _read(self, waiting: Waiting) -> bool:
        """Read the update. If it is faulty, refuse it and return False."""
        if waiting.update is not None:
            return True
        try:
            waiting.read_with(self._served(), self._state.ads)
        except RequestError as error:
            self._fail(waiting, refusal_of(error, "UpdateAdsRequest"), "refused")
            return False
        except ServiceError as error:
            self._fail(waiting, error, "refused")
            return False
        self._count_puts("taken", len(waiting.read.put))
        self._count_puts("refused", len(waiting.refused))
        return True

    def _sorted_out(self, ordered: list[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
        """Return the updates that follow the state, and those that are in force already.

        Refuse the others, or keep those that came too early for a while.
        """
        news: list[Waiting] = []
        repeated: list[Waiting] = []
        last, size, awaits_full = self._state.sequence, self._state.size, self._awaits_full
        patient_since = perf_counter() - PATIENCE_SECONDS
        for each in ordered:
            try:
                require_after(last, each.read, awaits_full=awaits_full)
                require_numbers_left(last, each.read)
                if each.sequence > last:
                    each.parts = self._parts.all_of(each)
                    size = require_room(size, each.updates) if each.parts else size
            except GapError as error:
                if each.arrived > patient_since and not awaits_full:
                    self._early.append(each)
                else:
                    self._fail(each, ServiceError("update_gap", str(error)), "refused")
                continue
            except RequestError as error:
                self._fail(each, refusal_of(error, "UpdateAdsRequest"), "refused")
                continue
            if not each.done.set_running_or_notify_cancel():
                continue
            if each.sequence <= last:
                repeated.append(each)
            elif each.parts:
                news.append(each)
                last, awaits_full = each.sequence, False
            else:
                self._count("part", 1)
                self._end(each, applied=False)
        return news, repeated

    def _publish(self, updates: list[AdUpdate]) -> None:
        with self._publishing:
            for update in updates:
                self._state.apply(update)
            touched = touched_by(updates)
            for live in list(self._attached):
                live.refresh(self._state, touched)
        if any(update.parts for update in updates):
            self._parts = Parts()
        self._awaits_full = False
        self._note_facts()
        if any(update.changes_ads for update in updates):
            self._changed_ads()

    def _end(self, waiting: Waiting, applied: bool) -> None:
        waiting.done.set_result(
            Updated(self._state.sequence, applied, waiting.update, waiting.refused, waiting.absent)
        )
        waiting.parts = ()  # it is one of them: only the garbage collector would free it

    def _note_facts(self) -> None:
        state, changes = self._state, self._state.ads
        stopped = {level: len(ids) for level, ids in state.stopped.items()}
        self.facts = UpdateFacts(
            sequence=state.sequence,
            stopped=stopped,
            weights=len(state.weights),
            awaits_full=self._awaits_full,
            last_change=changes.last,
            rebased=changes.rebased,
        )
        if not self._awaits_full and not self.complete.done():
            self.complete.set_result(None)

    def _fail(self, waiting: Waiting, failure: ServiceError, result: UpdateResult) -> None:
        self._count(result, 1)
        done = waiting.done
        if not done.done() and (done.running() or done.set_running_or_notify_cancel()):
            done.set_exception(failure)
        waiting.parts = ()

    def _rewrite_if_large(self) -> None:
        if not self._log.wants_rewrite:
            return
        try:
            self._log.rewrite(self._state.full_messages())
        except GraceError as error:
            LOG.error("updates_log_grows", extra={"fault": str(error)})
