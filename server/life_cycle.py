"""The server from start to end.

STARTING   the ports are bound; health says NOT_SERVING while a thread loads snapshot and checkpoint
           and warms every stage up
SERVING    until SIGTERM or SIGINT, or until a stage or a process that holds gRPC dies
DRAINING   NOT_SERVING; calls are taken for `listen.linger_seconds`, then the calls under way are
           finished within `listen.drain_seconds`
FAILED     a stage or a process has died: its calls fail, and the server ends
"""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import prometheus_client
import torch
import uvloop

from grace.configs.errors import GraceError
from grace.configs.serving import ServingConfig
from grace.kernels import device_named, load_ops
from grace.server import start_up
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import ServingPair, engine_settings
from grace.server.messages import Retrieval
from grace.server.observe.logs import LOG, PrintedText, configure_logs, flush_logs
from grace.server.observe.metrics import Metrics
from grace.server.observe.timeline import FILED, Timeline
from grace.server.reload.fresh import Fresh
from grace.server.reload.loading import Loader
from grace.server.reload.reloads import Reloads
from grace.server.scheduling.pipeline import Pipeline
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.stage_faults import place_of
from grace.server.scheduling.streams import streams_for
from grace.server.server_state import Phase, ServerState
from grace.server.stages.stages import STAGES, Stages
from grace.server.stages.warm_up import warm_up_requests
from grace.server.threads import DaemonThread, name_this_thread
from grace.server.transport.admin import Admin
from grace.server.transport.certificates import WatchedCredentials
from grace.server.transport.front_end import FrontEnd
from grace.server.transport.listeners import Listeners

STOPPED, FAILED, NOT_STARTED = 0, 1, 2  # exit codes
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

SWITCH_SECONDS = 5e-4  # that a busy stage thread may keep the interpreter from the event loop
FAIL_SECONDS = 2.0  # for the failures of a dead stage to reach their callers
BEAT_SECONDS = 1.0  # between two checks for a stage that hangs
JOIN_SECONDS = 5.0  # for the pipeline's threads to end, once nothing is under way


def serve(
    config: ServingConfig,
    stages: Stages = STAGES,
    timeline: Path | None = None,
    source: str = "",  # of the settings: a file, and options that replaced some of it
) -> int:
    """Run until a signal or a fault ends the process. Return a code if it cannot start."""
    configure_logs(config.logs)
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(config.threads.torch)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        start_up.require_guarded_admin(config)
        start_up.require_descriptors(config.limits.connections)
        device = device_named(config.device)
        load_ops(device)
        engine_settings(config, device)
        requests = warm_up_requests(config.warm_up, config.limits, config.generation)
        with (
            redirect_stderr(PrintedText()),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):

            async def run() -> NoReturn:
                await Server(config, stages, timeline, device, requests).run()

            runner.run(run())
    except (GraceError, OSError) as error:
        fault = start_up.start_fault(error, config, source)
    except (MemoryError, RuntimeError) as error:  # a thread that cannot start is the latter
        shortage = start_up.too_little_memory(error, config)
        if shortage is None:
            raise
        fault = f"{source}: {shortage}" if source else str(shortage)
    flush_logs()
    print(f"error: {fault}", file=sys.stderr, flush=True)
    return NOT_STARTED


class Server:
    """Belongs to the event loop."""

    def __init__(
        self,
        config: ServingConfig,
        stages: Stages,
        timeline: Path | None,
        device: torch.device,
        requests: tuple[Retrieval, ...],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        aside = ThreadPoolExecutor(initializer=partial(name_this_thread, "grace-aside"))
        self._loop.set_default_executor(aside)
        self._stop_asked, self._broken = asyncio.Event(), asyncio.Event()
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._asked_to_stop)
        self._config = config
        self._stages = stages
        self._device = device
        self._timeline_path = timeline
        self._predictions = Predictions()
        self._state = state = ServerState()
        if timeline is not None:
            state.timeline = Timeline(FILED)
        self._metrics = Metrics(state, device)
        self._credentials = WatchedCredentials(config, self._metrics.credentials_loaded)
        # The loop must not own this handler: at its end, it would let SIGHUP end the process.
        self._look_asked = False
        signal.signal(signal.SIGHUP, self._asked_to_look)
        self._front_end = FrontEnd(state, config, self._metrics)
        if config.state_dir is not None:
            state.updates = AdUpdates(
                config.state_dir,
                config.updates,
                self._replies_left,
                self._metrics.updated,
                self._thread_died,
                lambda: None if state.pair is None else state.pair.snapshot,
                self._metrics.puts_read,
                lambda: self._loop.call_soon_threadsafe(self._fresh.changed.set),
            )
        died = self._broken.set
        loader = Loader(config, device, stages, requests, state.updates)
        self._reloads = Reloads(loader, state, self._metrics, died)
        min_seconds = config.updates.min_interval_ms / 1e3
        self._fresh = Fresh(self._reloads.serve_changes, state, min_seconds)
        self._admin = Admin(state, config, self._reloads, self._fresh, stages)
        self._listeners = Listeners(config, self._front_end, self._admin, died, self._credentials)

    async def run(self) -> NoReturn:
        begun = (self._state.loop_lag.watch(), self._credentials.watch(), self._watch_stages())
        watches = [asyncio.create_task(each) for each in begun]
        try:
            await self._listeners.open(self._metrics.registry, self._state)
            # Only now: gRPC's thread, which has been started, would inherit the name.
            name_this_thread("grace-loop")
            self._state.loop_lag.watch_for_hang(_loop_hangs)
            if self._state.updates is not None:
                self._state.updates.start()
            pair = await self._load()
            if pair is not None:
                watches.append(asyncio.create_task(self._fresh.watch()))
            if pair is None or not await self._goes_on_until(self._updates_complete()):
                await self._listeners.close()
                # The loading thread is in native code, which nothing interrupts.
                exit_now(FAILED if self._broken.is_set() else STOPPED)
            await self._go_ready()
            watches.append(asyncio.create_task(self._reloads.watch()))
            await self._serve_and_end()
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for watch in watches:
                watch.cancel()
            await self._listeners.close()

    async def _load(self) -> ServingPair | None:
        """Return None if the server was asked to stop, or broke, before it was ready."""
        loading = asyncio.ensure_future(self._reloads.first(self._predictions.observe))
        if not await self._goes_on_until(loading):
            return None
        try:
            pair = loading.result()
            if (updates := self._state.updates) is not None:
                await DaemonThread("grace-aside").run(lambda: updates.attach(pair))
        except Exception:  # counted, and raised again
            self._metrics.loads["failed"].inc()
            raise
        self._metrics.loads["ok"].inc()
        self._state.pair = pair
        return pair

    async def _updates_complete(self) -> None:
        if (updates := self._state.updates) is None:
            fields = {"refused": "stops, weights and rollbacks", "remedy": "set state_dir"}
            LOG.warning("no_state_dir", extra=fields)
        else:
            await updates.until_complete()
            needs_full = self._config.updates.require_full
            await self._fresh.until_visible(updates.facts.sequence, despite_faults=needs_full)

    async def _goes_on_until(self, work: Awaitable[object]) -> bool:
        """Wait for the work. Return False if the server is asked to stop, or breaks, before."""
        if await _first(work, self._stop_asked.wait(), self._broken.wait()) == 0:
            return True
        if self._broken.is_set():
            self._state.phase = Phase.FAILED
        else:
            self._state.phase = Phase.DRAINING
            LOG.info("draining")
        return False

    async def _go_ready(self) -> None:
        state, config = self._state, self._config
        pair = state.served()
        self._metrics.serves(pair.snapshot)
        state.pipeline = Pipeline(
            stages=self._stages,
            pair=state.served,
            generation=config.generation,
            batching=config.batching,
            predictions=self._predictions,
            outcomes=self._front_end,
            died=self._thread_died,
            streams=streams_for(self._device),
            timeline=state.timeline,
        )
        state.pipeline.start()
        gc.collect()
        gc.freeze()  # what is loaded stays: collections need not look at it again
        state.phase, state.takes = Phase.SERVING, True
        await self._listeners.set_health(serving=True)
        facts = {"snapshot_version": pair.snapshot.facts.version, "checkpoint": pair.checkpoint}
        engine = {**asdict(pair.model.engine), **asdict(pair.eligibility)}
        engine["fp8_clipped"] = state.fp8_clipped  # while it warmed up
        LOG.info("ready", extra={"device": config.device, **facts, **engine})

    async def _serve_and_end(self) -> NoReturn:
        pipeline = self._state.pipeline
        assert pipeline is not None
        await _first(self._stop_asked.wait(), self._broken.wait())
        self._reloads.close()
        finished = not self._broken.is_set() and await self._drain()
        if self._broken.is_set():
            finished = False
            self._state.phase, self._state.takes = Phase.FAILED, False
            await self._listeners.set_health(serving=False)
            await self._listeners.finish_calls(FAIL_SECONDS)
        if (updates := self._state.updates) is not None:
            await DaemonThread("grace-aside").run(lambda: updates.close(JOIN_SECONDS))
        pipeline.close()
        joined = await DaemonThread("grace-aside").run(lambda: pipeline.join(JOIN_SECONDS))
        self._write_timeline()
        await self._listeners.close()
        # Not through the interpreter's end, which could abort: a thread may be in native code, such
        # as the one that frees a pair.
        exit_now(STOPPED if finished and joined else FAILED)

    async def _drain(self) -> bool:
        """Return whether every call that was taken has been answered."""
        self._state.phase = Phase.DRAINING
        LOG.info("draining")
        await self._listeners.set_health(serving=False)
        listen = self._config.listen
        if await _first(asyncio.sleep(listen.linger_seconds), self._broken.wait()) != 0:
            return False
        self._state.takes = False
        return await self._listeners.finish_calls(listen.drain_seconds)

    async def _watch_stages(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if self._state.pipeline is not None:
                self._state.pipeline.beat()

    def _write_timeline(self) -> None:
        if self._timeline_path is None:
            return
        try:
            self._timeline_path.write_text(self._state.timeline.trace(), encoding="utf-8")
        except OSError as error:
            fields = {"path": str(self._timeline_path), "fault": error.strerror}
            LOG.error("timeline_lost", extra=fields)

    def _asked_to_stop(self) -> None:
        if self._stop_asked.is_set():
            LOG.warning("forced", extra={"cut": self._state.in_flight})
            exit_now(FAILED)
        self._stop_asked.set()

    def _asked_to_look(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._look_asked:  # many signals at once are one
            self._look_asked = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._look_asked = False
        self._loop.run_in_executor(None, self._credentials.look)
        self._reloads.look_now()

    def _replies_left(self) -> None:
        """Wait until every batch that post has matched is answered; not on the event loop."""
        if self._state.pipeline is not None:
            self._state.pipeline.wait_answered()
            asyncio.run_coroutine_threadsafe(self._listeners.replies_left(), self._loop).result()

    def _thread_died(self) -> None:
        """End the server. A thread of the pipeline or of the updates calls this."""
        self._loop.call_soon_threadsafe(self._broken.set)


def _loop_hangs() -> NoReturn:
    """End the server from another thread: nothing else can, not even a signal."""
    LOG.critical("loop_hangs", exc_info=place_of(threading.main_thread().name))
    exit_now(FAILED)


def exit_now(code: int) -> NoReturn:
    """End the process at once. Only the log's thread has a short time to write what is left."""
    LOG.info("stopped", extra={"exit_code": code})
    flush_logs()
    os._exit(code)


async def _first(*events: Awaitable[object]) -> int:
    """Wait until one of some events has happened; return its index. Cancel the others."""
    waits = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    first = next(number for number, wait in enumerate(waits) if wait.done())
    for wait in waits:
        wait.cancel()
    return first
