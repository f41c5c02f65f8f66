"""A load that hangs fails, and nothing waits for it: no later load, no rollback, no shutdown."""

import asyncio
import fcntl
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grace.configs.serving import load_serving_config
from grace.index.allocation import plain_memory
from grace.index.storage.reader import open_snapshot, read_snapshot
from grace.server.daemon_thread import DaemonThread
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.messages import InputBatch, RequestBatch
from grace.server.observe.metrics import Metrics
from grace.server.reload.loading import MOST_HANGING
from grace.server.reload.reloads import Reloads
from grace.server.server_state import Phase, ServerState
from grace.server.stages.stages import STAGES
from support.live_snapshots import LiveRoot
from support.pipeline_cases import LONG
from support.served import until
from support.serving_files import ServingFiles
from support.stage_cases import load_cpu_pair, retrieval_of

HANG_SECONDS = 1.0


class Service:
    """Reloads of a real root. Versions above 1 hang in their first batch until `gate` is set."""

    def __init__(self, live: LiveRoot, state_dir: Path, hang_seconds: float) -> None:
        config = replace(load_serving_config(live.write_config("c.yaml")), state_dir=state_dir)
        self.gate, self.hung = threading.Event(), list[weakref.ref[ServingPair]]()
        self.hanging = set[int]()
        self.attached = list[int]()
        self.state = ServerState()
        self.state.pair = load_cpu_pair(live.folder(1), live.files.checkpoint)
        self.state.phase = Phase.SERVING
        cpu = torch.device("cpu")
        self.metrics = Metrics(self.state, cpu)
        self.reloads = Reloads(
            config,
            self.state,
            self.metrics,
            cpu,
            replace(STAGES, input=self.input),
            (retrieval_of(live.requests[0]),),
            broken=lambda: pytest.fail("the device is not broken"),
            before_swap=lambda pair: self.attached.append(pair.snapshot.facts.version),
            hang_seconds=hang_seconds,
        )

    def input(self, batch: RequestBatch) -> InputBatch:
        if batch.pair.snapshot.facts.version in self.hanging:
            self.hung.append(weakref.ref(batch.pair))
            assert self.gate.wait(4 * LONG)
        return STAGES.input(batch)

    @property
    def version(self) -> int:
        return self.state.served().snapshot.facts.version

    def failures(self) -> float | None:
        return self.metrics.registry.get_sample_value(
            "grace_snapshot_load_total", {"result": "failed"}
        )


Use = Callable[[Service, LiveRoot], Awaitable[None]]


def with_reloads(hang_seconds: float = HANG_SECONDS) -> Callable[[Use], Callable[..., None]]:
    """Let a test run with a service and its root."""

    def decorated(use: Use) -> Callable[..., None]:
        def run(live: LiveRoot, tmp_path: Path) -> None:
            async def serve() -> None:
                service = Service(live, tmp_path / "state", hang_seconds)
                try:
                    await asyncio.wait_for(use(service, live), 4 * LONG)
                finally:
                    service.gate.set()

            asyncio.run(serve())

        run.__doc__ = use.__doc__
        return run

    return decorated


async def fault_of(load: Awaitable[object]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await load
    return caught.value


@pytest.mark.usefixtures("no_collections")
@with_reloads()
async def test_later_loads_and_rollbacks_get_another_thread_and_the_hung_load_never_swaps(
    service: Service, live: LiveRoot
) -> None:
    reloads, third = service.reloads, live.add(like=2)
    service.hanging = {2}
    fault = await fault_of(reloads.load(2, live.files.checkpoint))
    assert (fault.reason, service.failures(), service.version) == ("load_failed", 1, 1)
    assert fault.text == (
        f"version 2 of {live.root}, checkpoint {live.files.checkpoint}: the load has made no "
        "progress for 1 s; check whether its file system hangs, then load it again"
    )
    status = reloads.status()
    assert (status.fault, status.failed_version) == (fault.text, 2)
    assert status.loading_version == 0
    assert (await reloads.load(third, None)).version == third
    assert (await reloads.roll_back(1)).previous_version == third
    assert service.hung[0]() is not None
    service.gate.set()
    await until(lambda: service.hung[0]() is None)
    assert (service.version, service.attached) == (1, [third, 1])


@with_reloads()
async def test_a_server_follows_current_beyond_a_version_whose_load_hangs(
    service: Service, live: LiveRoot
) -> None:
    service.hanging = {2}
    watch = asyncio.create_task(service.reloads.watch())
    live.publish(2)
    await until(lambda: bool(service.hung))
    third = live.add(like=2)
    live.publish(third)
    await until(lambda: service.version == third)
    assert (service.reloads.status().fault, service.failures()) == ("", 1)
    watch.cancel()


@with_reloads()
async def test_a_server_tries_the_load_of_current_again_once_it_hangs_no_more(
    service: Service, live: LiveRoot
) -> None:
    service.hanging = {2}
    watch = asyncio.create_task(service.reloads.watch())
    live.publish(2)
    await until(lambda: service.failures() == 1)
    await asyncio.sleep(2 * HANG_SECONDS)
    assert len(service.hung) == 1
    service.gate.set()
    await until(lambda: service.version == 2)
    assert service.reloads.status().fault == ""
    watch.cancel()


@with_reloads()
async def test_a_server_does_not_leave_an_operators_version_for_one_whose_load_hung(
    service: Service, live: LiveRoot
) -> None:
    """Neither the load of CURRENT nor an operator's with a checkpoint is tried again."""
    service.hanging = {2}
    third = live.add(like=1)
    watch = asyncio.create_task(service.reloads.watch())
    live.publish(2)
    await until(lambda: service.failures() == 1)
    await service.reloads.load(third, None)
    await fault_of(service.reloads.load(2, live.files.checkpoint))
    service.gate.set()
    await until(lambda: not any(each() for each in service.hung))
    await asyncio.sleep(2 * HANG_SECONDS)
    assert service.version == third
    watch.cancel()


@pytest.fixture
def no_sigio() -> Iterator[None]:
    """Ignore the signal that asks a holder to release its lease."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.mark.usefixtures("no_sigio")
@with_reloads()
async def test_a_server_tries_again_after_another_process_had_a_lease_on_a_file(
    service: Service, live: LiveRoot
) -> None:
    file = live.folder(2) / "ad_ids.npy"
    with file.open("r+b") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        watch = asyncio.create_task(service.reloads.watch())
        live.publish(2)
        await until(lambda: service.failures() == 1)
        fault = service.reloads.status().fault
        assert f"{file}: cannot be read: another process has a lease on it" in fault
    await until(lambda: service.version == 2)
    watch.cancel()


@with_reloads(hang_seconds=100 * LONG)
async def test_a_server_that_shuts_down_does_not_wait_for_a_load_that_hangs(
    service: Service,
    live: LiveRoot,  # noqa: ARG001
) -> None:
    service.hanging = {2}
    load = asyncio.ensure_future(service.reloads.load(2, None))
    await until(lambda: bool(service.hung))
    service.reloads.close()
    assert (await fault_of(load)).reason == "draining"


@with_reloads(hang_seconds=0.5)
async def test_the_server_begins_no_load_while_the_most_loads_that_may_hang_do(
    service: Service, live: LiveRoot
) -> None:
    service.hanging = {2}
    text, tries = "", 0
    while "earlier loads" not in text:
        tries += 1
        text = (await fault_of(service.reloads.load(2, None))).text
    assert tries > MOST_HANGING
    assert text == (
        f"version 2 of {live.root}: {MOST_HANGING} earlier loads still hang; repair their file "
        "system, or restart the server"
    )
    service.gate.set()
    while "earlier loads" in text:
        text = ""
        try:
            await service.reloads.load(2, None)
        except ServiceError as error:  # on a busy machine, this load may seem to hang, too
            text = error.text


def test_work_that_is_slow_but_goes_on_does_not_hang() -> None:
    def crawl() -> int:
        for _ in range(150):
            time.sleep(0.02)
        return 7

    async def use() -> None:
        thread = DaemonThread("grace-slow")
        assert await thread.run_unless_it_hangs(crawl, 1.0) == 7
        with pytest.raises(TimeoutError):
            await thread.run_unless_it_hangs(lambda: time.sleep(LONG), 0.1)
        assert (await thread.run(lambda: 8), thread.hanging) == (8, 1)

    asyncio.run(use())


def test_one_reader_reads_on_the_thread_of_its_caller(
    serving_files: ServingFiles,
) -> None:
    """On another thread, a slow reader would make its load seem to hang."""
    threads = set[int]()

    def allocate(size: int) -> object:
        threads.add(threading.get_ident())
        return plain_memory(size)

    with open_snapshot(serving_files.snapshots, None) as opened:
        read_snapshot(opened, 2, allocate, readers=1)  # type: ignore[arg-type]
    assert threads == {threading.get_ident()}
