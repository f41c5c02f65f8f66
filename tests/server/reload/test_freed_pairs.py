"""A pair is freed with its last batch, and a failed load leaves nothing in memory.

Neither needs the garbage collector.
"""

import asyncio
import gc
import threading
import weakref
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from grace.configs.serving import ServingConfig, load_serving_config
from grace.index.snapshot import Snapshot
from grace.model.checkpoints.init import write_random
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import InputBatch, PendingRequest, RequestBatch
from grace.server.observe.metrics import Metrics
from grace.server.reload.loading import Loader, LoadFault
from grace.server.reload.reloads import Reloads
from grace.server.scheduling.pipeline import Pipeline
from grace.server.scheduling.streams import streams_for
from grace.server.server_state import Phase, ServerState
from grace.server.stages.stages import STAGES, Stages
from support.fast_serving import captured_pair
from support.live_snapshots import LiveRoot
from support.pipeline_cases import LONG, Recorder, make_pipeline
from support.served import until
from support.server_process import wait_until
from support.serving_files import model_spec
from support.stage_cases import GENERATION, load_cpu_pair, retrieval_of

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
devices = pytest.mark.parametrize(
    "device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=["cpu", "gpu"]
)


def config_of(live: LiveRoot) -> ServingConfig:
    return load_serving_config(live.write_config("freed.yaml"))


def loader_of(live: LiveRoot, device: torch.device, stages: Stages = STAGES) -> Loader:
    requests = tuple(map(retrieval_of, live.requests))
    config = replace(config_of(live), memo_bytes=1 << 22)
    return Loader(config, device, stages, requests, None)


def first_pair(live: LiveRoot, device: torch.device) -> ServingPair:
    if device.type == "cuda":
        return captured_pair(live.files.snapshots, live.files.checkpoint)
    return load_cpu_pair(live.root, live.files.checkpoint)


def loaded(
    loader: Loader, version: int, served: ServingPair, checkpoint: Path | None = None
) -> ServingPair:
    pair = loader.load(version, checkpoint, served)
    assert isinstance(pair, ServingPair), pair
    return pair


class Server:
    """A pipeline and the pair that it serves."""

    def __init__(self, live: LiveRoot, device: torch.device, stages: Stages = STAGES) -> None:
        self.pair = first_pair(live, device)
        self._live = live
        self.recorder = Recorder()
        self.pipeline: Pipeline = make_pipeline(
            stages,
            self.recorder,
            streams=streams_for(device),
            pair=lambda: self.pair,
            generation=GENERATION,
        )
        self.pipeline.start()

    def submit(self) -> PendingRequest:
        request = PendingRequest(retrieval_of(self._live.requests[0]), 0.0, float("inf"))
        self.pipeline.scheduler.submit(request)
        return request

    def serve(self) -> None:
        self.recorder.wait_for(self.submit())

    def forget(self) -> None:
        self.recorder.ends.clear()
        self.recorder.done.clear()

    def stop(self) -> None:
        self.pipeline.close()
        assert self.pipeline.join(LONG)
        assert self.recorder.deaths == 0


def watched(pair: ServingPair) -> list[weakref.ref[object]]:
    """Return references to the pair and its large parts."""
    parts: list[object] = [pair, pair.snapshot.ads.ad_ids, pair.index.csr_tokens, pair.matcher]
    return [weakref.ref(part) for part in [*parts, pair.users]]


@devices
@pytest.mark.usefixtures("no_collections")
def test_an_old_pair_lives_as_long_as_its_last_batch(live: LiveRoot, device: torch.device) -> None:
    gate, held = threading.Event(), threading.Event()
    gate.set()

    def generate(batch: object) -> object:
        held.set()
        assert gate.wait(LONG)
        return STAGES.generate(batch)  # type: ignore[arg-type]

    server = Server(live, device, replace(STAGES, generate=generate))  # type: ignore[arg-type]
    loader = loader_of(live, device)
    server.serve()
    pair = loaded(loader, 2, server.pair)
    gate.clear()
    held.clear()
    last = server.submit()
    assert held.wait(LONG)
    old, server.pair = watched(server.pair), pair
    server.forget()
    assert all(part() is not None for part in old)
    gate.set()
    server.recorder.wait_for(last)
    server.forget()
    wait_until(lambda: not any(part() is not None for part in old), "it is freed")
    server.serve()
    (answered, _) = server.recorder.done[-1]
    assert answered.input.batch.pair.snapshot.facts.version == 2
    server.stop()


@pytest.mark.usefixtures("no_collections")
def test_a_swapped_out_pair_is_freed_on_another_thread_and_no_thread_keeps_a_loaded_one(
    live: LiveRoot,
) -> None:
    """The thread that ends the pair's last batch must not wait until gigabytes are freed."""
    freed: list[int] = []

    async def swap() -> None:
        state = ServerState()
        state.pair, state.phase = first_pair(live, CPU), Phase.SERVING
        for part in (state.pair.snapshot.ads.ad_ids, state.pair.matcher, state.pair.users):
            weakref.finalize(part, lambda: freed.append(threading.get_ident()))
        del part
        reloads = Reloads(loader_of(live, CPU), state, Metrics(state, CPU), nothing)
        batch = [state.pair]
        await reloads.load(2, None)
        batch.clear()
        await until(lambda: len(freed) == 3)
        loaded = weakref.ref(state.pair)
        state.pair = None
        await until(lambda: loaded() is None)

    asyncio.run(asyncio.wait_for(swap(), LONG))
    assert threading.get_ident() not in freed


def nothing() -> None:
    pass


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("fault", ["a file", "the SID space"])
@pytest.mark.usefixtures("no_collections")
def test_a_load_that_fails_leaves_nothing(live: LiveRoot, fault: str) -> None:
    checkpoint = None
    if fault == "a file":
        (live.folder(2) / "ad_weight.npy").unlink()
    else:
        checkpoint = live.root / "other"
        other = replace(model_spec(), sid_space="other-1")
        write_random(other, checkpoint, 1, torch.float32)
    served, loader = first_pair(live, CPU), loader_of(live, CPU)
    before = alive(Snapshot), alive(ServingPair)
    for _ in range(3):
        assert isinstance(loader.load(2, checkpoint, served), LoadFault)
    assert (alive(Snapshot), alive(ServingPair)) == before


def test_whatever_a_stage_raises_ends_the_load_with_one_line(live: LiveRoot) -> None:
    def fail(_: object) -> object:
        raise ZeroDivisionError("of a secret")

    stages = replace(STAGES, features=fail)  # type: ignore[arg-type]
    found = loader_of(live, CPU, stages).load(2, None, first_pair(live, CPU))
    assert isinstance(found, LoadFault)
    assert found.text == "internal error (ZeroDivisionError); see load_broke in the server's log"


def test_a_snapshot_warms_up_with_small_batches_and_a_checkpoint_with_all(
    live: LiveRoot, tmp_path: Path
) -> None:
    ran = []
    other = tmp_path / "other"
    write_random(model_spec(), other, seed=2, dtype=torch.float32)

    def note(batch: RequestBatch) -> InputBatch:
        ran.append((batch.profile_name, batch.bucket))
        return STAGES.input(batch)

    loader, served = loader_of(live, CPU, replace(STAGES, input=note)), first_pair(live, CPU)
    generation = config_of(live).generation
    served = loaded(loader, 2, served)
    assert ran == [(name, 1) for name in generation.profiles]
    ran.clear()
    loaded(loader, 2, served, other)
    assert ran == list(product(generation.profiles, generation.batch_buckets))
