"""Live snapshots: the server follows CURRENT and its operators. It loads, swaps, pins and reports.

One load runs at a time, on its own thread. The swap is one assignment on the event loop. The next
batch uses the new pair. Batches under way keep the old one, and the last of them frees it. Whatever
fails, the old pair keeps serving.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from grace.configs.errors import ConfigError, GraceError
from grace.index.storage import Published, published
from grace.proto.retrieval_pb2 import LoadStatus
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import MAX_RETRY_SECONDS, ServiceError, draining, not_ready
from grace.server.observe.logs import LOG
from grace.server.observe.metrics import Metrics
from grace.server.reload.current import Current
from grace.server.reload.loading import Loader, LoadFault, Retired
from grace.server.reload.pin import Pin, StoredPin, decide, pin_for
from grace.server.server_state import Phase, ServerState
from grace.server.stages.warm_up import Observe
from grace.server.start_up import start_fault
from grace.server.threads import DaemonThread

MOST_CALLS = 8
"""The most operators' calls at once: one that loads, and others that wait for their turn."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Served:
    """What the server serves after an operator's call, and what the call changed."""

    version: int
    checkpoint: str
    changed: bool
    previous_version: int
    previous_pin: int = 0


class Reloads:
    """Loads and swaps pairs. It belongs to the event loop, and uses files on other threads."""

    def __init__(
        self, loader: Loader, state: ServerState, metrics: Metrics, broken: Callable[[], None]
    ) -> None:
        """Read the pin. Raise ConfigError if its file is damaged."""
        self._config = config = loader.config
        self._state = state
        self._metrics = metrics
        self._broken = broken  # called if a load has broken the GPU
        self._loader = loader
        self._loads = DaemonThread("grace-load")
        self._stored_pin = StoredPin(config.state_dir, metrics.pinned.set)
        self._current = Current(
            config.snapshots,
            lambda error: start_fault(error, config),
            lambda fault: self._failed(0, LoadFault(fault)),
        )
        self._retired = Retired()
        self._closing = asyncio.Event()
        self._asked_to_look = asyncio.Event()
        self._turn = asyncio.Lock()
        self._acted_on: Published | None = None
        self._loading = 0
        self._load_fault, self._failed_version = "", 0
        self._follows: asyncio.Task[None] | None = None
        self._operations: set[asyncio.Task[Served]] = set()

    def status(self) -> LoadStatus:
        pin, fault = self._pin, self._current.fault
        seen = None if fault else self._current.seen
        return LoadStatus(
            current_version=0 if seen is None else seen.version or 0,
            loading_version=self._loading,
            pinned_version=0 if pin is None else pin.version,
            pinned_until_above=0 if pin is None else pin.until_above,
            fault=fault or self._load_fault,
            failed_version=0 if fault else self._failed_version,
        )

    async def first(self, observe: Observe) -> ServingPair:
        """Return the pair to start with: the pinned version, or the one that CURRENT names."""
        load = partial(self._loader.load_first, observe=observe)

        def loaded() -> tuple[Published | None, ServingPair, str]:
            seen, pin, fault = None, self._pin, ""
            try:
                seen = published(self._config.snapshots)
            except (GraceError, OSError):
                if pin is None:
                    raise
            if pin is None or (seen is not None and pin.ends(seen)):
                try:
                    return seen, load(None), ""
                except GraceError as error:
                    if pin is None:
                        raise
                    fault = start_fault(error, self._config)
            try:
                return seen, load(pin.version), fault
            except GraceError as error:
                file = self._stored_pin.file
                assert file is not None
                raise ConfigError(
                    f"state_dir: {file.path} pins version {pin.version}, which cannot be "
                    f"loaded ({start_fault(error, self._config)}); publish a version above "
                    f"{pin.until_above}, or remove the file to follow CURRENT"
                ) from None

        seen, pair, fault = await self._loads.run(loaded)
        self._acted_on = self._current.seen = seen
        if seen is None or seen.version is None:
            await self._current.look()  # it reports why
        elif fault:
            self._failed(seen.version, LoadFault(fault))
        return pair

    async def watch(self) -> None:
        """Follow CURRENT until cancelled."""
        await self._end_pin_if_passed()
        self._stored_pin.report("pinned", self._pin)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.watch_seconds or None):
                    await self._asked_to_look.wait()
            self._asked_to_look.clear()
            await self._current.look()
            if self._due() and (self._follows is None or self._follows.done()):
                self._follows = asyncio.create_task(self._follow_in_turn())

    def look_now(self) -> None:
        """Let `watch` look at CURRENT at once."""
        self._asked_to_look.set()

    def close(self) -> None:
        """Stop waiting for loads, and refuse later ones. The caller cancels `watch`."""
        self._closing.set()

    async def load(self, version: int, checkpoint: Path | None) -> Served:
        """Load a version and a checkpoint, and return once the server serves them.

        Version 0 is the pinned one or else the one that CURRENT names. Checkpoint None is the one
        that is served now.
        """
        return await self._finished(self._load(version, checkpoint))

    async def roll_back(self, version: int) -> Served:
        """Serve an older version and pin it. Version 0 is the newest below the served one."""
        return await self._finished(self._roll_back(version))

    async def unpin(self) -> Served:
        """Remove the pin and follow CURRENT."""
        return await self._finished(self._unpin())

    async def serve_changes(self) -> str:
        """Serve the puts and removals that the served pair lacks. Return why that failed, or "".

        Raise `draining` if the server shuts down first.
        """
        async with self._turn:
            served, begin = self._state.served(), perf_counter()
            load = self._loads.run(partial(self._loader.show_changes, served))
            pair = await self._before_end(load)
            if isinstance(pair, LoadFault):
                if pair.device_is_broken:
                    self._broken()
                self._metrics.apply_failures.inc()
                LOG.error("changes_failed", extra={"fault": pair.text})
                return pair.text
            if pair is not served:
                self._swap(pair)
                seconds = perf_counter() - begin
                self._metrics.apply_seconds.observe(seconds)
                shown = pair.shown
                ads = {"ads_put": len(shown.put), "ads_removed": len(shown.removed)}
                facts = {"sequence": shown.sequence, **ads, "seconds": round(seconds, 3)}
                LOG.info("changes_served", extra=facts)
            return ""

    def _swap(self, pair: ServingPair) -> None:
        self._retired.add(self._state.served())
        self._state.pair = pair
        self._metrics.serves(pair.snapshot)

    async def _finished(self, operation: Coroutine[Any, Any, Served]) -> Served:
        """Run an operator's call to its end, even if the caller gives up."""
        if len(self._operations) >= MOST_CALLS:
            operation.close()
            most = f"{MOST_CALLS} calls load or wait for their turn, and no more may"
            text = f"{most}; see GetStatus, try later"
            raise ServiceError("too_many_loads", text, None, MAX_RETRY_SECONDS)
        task = asyncio.create_task(operation)
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _load(self, version: int, checkpoint: Path | None) -> Served:
        async with self._operators_turn():
            if not version:
                await self._before_end(self._current.look_now())
            pin, before, seen = self._pin, self._state.served(), self._current.seen
            if pin is not None and seen is not None and pin.ends(seen):
                pin = None  # it holds only until the version that CURRENT names can be served
            if version and pin is not None and version != pin.version:
                raise ServiceError(
                    "load_refused",
                    f"snapshot_version: {version}: a rollback has pinned version {pin.version}; "
                    "unpin first (grace admin unpin)",
                )
            if not version:
                assert seen is not None
                assert seen.version is not None
                self._acted_on = seen
                version = seen.version if pin is None else pin.version
            elif version != self._version:
                await self._before_end(self._current.require(version))
            await self._serve(version, "load", checkpoint)
            await self._end_pin_if_passed()
            return self._served_after(before)

    async def _roll_back(self, version: int) -> Served:
        if self._stored_pin.file is None:
            raise ServiceError(
                "load_refused",
                "state_dir: not set, so a rollback would not outlast a restart; restart the "
                "server with --state-dir FOLDER, or publish the older version (grace publish)",
            )
        async with self._operators_turn():
            before, pin = self._state.served(), self._pin
            if pin is None or version != pin.version:
                version = await self._before_end(self._current.older(version, self._version, pin))
                new = pin_for(version, self._version, self._current.seen, pin)
                await self._serve(version, "rollback", pin=new)
            return self._served_after(before)

    async def _unpin(self) -> Served:
        async with self._operators_turn():
            await self._before_end(self._current.look_now())
            before, pin = self._state.served(), self._pin
            if pin is not None:
                await self._set_pin(None)
            await self._follow("unpin")
            return self._served_after(before, 0 if pin is None else pin.version)

    def _served_after(self, before: ServingPair, previous_pin: int = 0) -> Served:
        pair = self._state.served()
        previous = before.snapshot.facts.version
        version = pair.snapshot.facts.version
        return Served(version, pair.checkpoint, pair is not before, previous, previous_pin)

    @asynccontextmanager
    async def _operators_turn(self) -> AsyncIterator[None]:
        """Wait until no other load runs, and keep later ones waiting meanwhile."""
        self._require_serving()
        async with self._turn:
            self._require_serving()
            yield

    def _require_serving(self) -> None:
        if self._state.phase == Phase.STARTING:
            raise not_ready()
        if self._closing.is_set():
            raise draining()

    def _due(self) -> bool:
        """Return whether the server has yet to act on what CURRENT names.

        So it tries a version that failed again only after a publish, and a version that an operator
        has loaded stays until the next publish.
        """
        return not self._current.fault and self._current.seen != self._acted_on

    async def _follow_in_turn(self) -> None:
        with suppress(ServiceError):  # the server shuts down
            while self._due():
                async with self._turn:
                    self._require_serving()
                    if self._due():
                        with suppress(ServiceError):  # reported, and the old pair keeps serving
                            await self._follow("current")

    async def _follow(self, why: str) -> None:
        """Serve what CURRENT names."""
        seen = self._acted_on = self._current.seen
        assert seen is not None
        version = decide(seen, self._pin, self._version)
        if version is not None:
            await self._serve(version, why)
        elif seen.version == self._version:
            self._forget_fault()
        await self._end_pin_if_passed()

    async def _serve(
        self, version: int, why: str, checkpoint: Path | None = None, pin: Pin | None = None
    ) -> None:
        """Load and swap, and store the pin if one is given. The caller holds the turn."""
        served, begin = self._state.served(), perf_counter()
        facts = {"snapshot_version": version, "why": why}
        if checkpoint is not None:
            facts["checkpoint"] = str(checkpoint)
        LOG.info("loading", extra=facts)
        self._loading = version
        try:
            load = partial(self._loader.load, version, checkpoint, served)
            pair = await self._before_end(self._loads.run(load))
            if isinstance(pair, LoadFault):
                if pair.device_is_broken:
                    self._broken()
                raise self._failed(version, pair)
            if pin is not None:
                await self._set_pin(pin)
        finally:
            self._loading = 0
        seen = self._current.seen
        if seen is None or self._failed_version != seen.version or seen.version == version:
            self._forget_fault()
        if pair is not served:
            before = self._version
            self._swap(pair)
            self._metrics.loads["ok"].inc()
            facts = {"snapshot_version": version, "checkpoint": pair.checkpoint}
            seconds = round(perf_counter() - begin, 3)
            LOG.info("swapped", extra={**facts, "previous_version": before, "seconds": seconds})

    def _forget_fault(self) -> None:
        """Report no fault any more: nothing that the server should serve has failed."""
        self._load_fault, self._failed_version = "", 0

    def _failed(self, version: int, fault: LoadFault) -> ServiceError:
        """Report a load that failed, and return its error. Version 0: CURRENT cannot be read."""
        if version:
            self._load_fault, self._failed_version = fault.text, version
        self._metrics.loads["failed"].inc()
        LOG.error("load_failed", extra={"snapshot_version": version, "fault": fault.text})
        return ServiceError("load_failed", fault.text)

    async def _end_pin_if_passed(self) -> None:
        """Drop the pin once the server serves what CURRENT names above it. Its file may stay."""
        pin, seen = self._pin, self._current.seen
        passed = pin is not None and seen is not None and pin.ends(seen)
        if passed and seen is not None and seen.version == self._version:
            with suppress(ServiceError):
                await self._set_pin(None)
            self._stored_pin.change(None)

    async def _set_pin(self, pin: Pin | None) -> None:
        if pin == self._pin:
            return
        try:
            await self._before_end(self._stored_pin.write(pin))
        except OSError as error:
            file = self._stored_pin.file
            assert file is not None
            fault = f"cannot be written: {error.strerror or error}"
            text = f"state_dir: {file.path}: {fault}; free some space, or correct the folder"
            version = self._version if pin is None else pin.version
            raise self._failed(version, LoadFault(text)) from None
        self._stored_pin.change(pin)

    async def _before_end(self, awaited: Awaitable[_Result]) -> _Result:
        """Return the result of the work; raise `draining` if the server shuts down first."""
        work = asyncio.ensure_future(awaited)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((work, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
        if self._closing.is_set():
            raise draining()
        return work.result()

    @property
    def _pin(self) -> Pin | None:
        return self._stored_pin.pin

    @property
    def _version(self) -> int:
        return self._state.served().snapshot.facts.version
