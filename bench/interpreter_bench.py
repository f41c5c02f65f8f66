"""Measures what a batch of 16 costs the Python interpreter, stage by stage, without gRPC.

    python -m grace.bench.interpreter_bench --out bench/results/cpu-2core/interpreter.json

Requests are as long as the paper's model allows, and users have 64 locations. The stages are the
service's own, as on a GPU, except for the device's work: generation draws random leaves. For each
stage and batch:
  cpu     processor time of its thread, including C++ without the interpreter lock
  alone   elapsed time
  beside  elapsed time while another thread keeps the interpreter lock as long as it can: each
          operation that releases the lock waits a switch interval to get it back
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from grace.bench.gpu.catalogue import Catalogue, full_requests
from grace.bench.gpu.workload import PAPER
from grace.bench.result_file import record
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.kernels import DecodeIndex, UserTensors
from grace.model.checkpoints.init import load_model_config, random_model
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.spec import BagInput, EncoderSpec, InterFormerSpec, ModelSpec
from grace.model.engine.feature_stage import FastStage
from grace.model.engine.prefix_memo import PrefixMemo
from grace.server.engine.serving_pair import (
    EngineFacts,
    ServingModel,
    ServingPair,
    serving_pair,
)
from grace.server.messages import PendingRequest, RequestBatch, Span
from grace.server.observe.metrics import LoopLag, Metrics
from grace.server.server_state import ServerState
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES

BATCH = 16
BATCHES = 16
SWITCH_SECONDS = 5e-4  # the service's
POST_THREADS = 2
CPU = torch.device("cpu")

Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Row:
    """Medians, in microseconds for a batch; `beside` is next to a thread that holds the lock."""

    stage: str
    cpu_us: float
    alone_us: float
    beside_us: float


class DrawnLeaves:
    """A stand-in for the model: it generates random leaves."""

    memo: PrefixMemo | None = None

    def __init__(self, leaves: int) -> None:
        rng = np.random.default_rng(3)
        drawn = rng.permuted(np.tile(np.arange(leaves, dtype=np.int32), (BATCH, 1)), axis=1)
        self._leaves = torch.from_numpy(drawn)
        self._scores = -torch.arange(leaves, dtype=torch.float32).expand(BATCH, -1)

    def generate(
        self,
        features: FeatureTensors,  # noqa: ARG002
        users: UserTensors,  # noqa: ARG002
        index: DecodeIndex,  # noqa: ARG002
        profile: BeamProfile,
    ) -> Generated:
        first = slice(0, profile.num_sids)
        none = torch.zeros(BATCH, dtype=torch.bool)
        return Generated(
            self._leaves[:, first].contiguous(), self._scores[:, first].contiguous(), none
        )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.interpreter_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--sids", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args(arguments)
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(1)
    rows = map(asdict, measure(Catalogue(options.sids), options.repetitions))
    record("python -m grace.bench.interpreter_bench", arguments, rows, options.out)


def measure(catalogue: Catalogue, repetitions: int) -> Iterator[Row]:
    loaded = load_model_config(PAPER)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    spec = replace(_narrow(loaded.model), sid_space=snapshot.facts.sid_space)
    profile = loaded.generation.profiles["full"]
    sids = min(profile.num_sids, snapshot.trie.num_leaves)
    generation = GenerationConfig(BATCH, {"full": replace(profile, num_sids=sids)}, "full")
    pair = _pair(spec, snapshot)
    users = catalogue.attributes(0, BATCH * BATCHES)
    messages = [each.SerializeToString() for each in full_requests(spec, users, seed=1)]

    limits = LimitsConfig()

    def read(some: Sequence[bytes]) -> tuple[PendingRequest, ...]:
        return tuple(
            PendingRequest(read_request(each, limits, generation), 0.0, float("inf"))
            for each in some
        )

    read_at_once = [messages[i : i + BATCH] for i in range(0, len(messages), BATCH)]
    bound = [
        RequestBatch(pair, "full", generation.profiles["full"], BATCH, read(some), 0.0)
        for some in read_at_once
    ]
    spans = tuple(Span(stage, 1.0, 1.001) for stage in ("input", "features", "generate"))
    inputs = [STAGES.input(batch) for batch in bound]
    generated = [STAGES.generate(STAGES.features(batch)) for batch in inputs]
    answered = [STAGES.post(batch, spans) for batch in generated]
    metrics = Metrics(ServerState(), LoopLag(), CPU)
    metrics.serves(snapshot)
    yield _measured("read", read, read_at_once, repetitions)
    yield _measured("input", STAGES.input, bound, repetitions)
    yield _measured("post", lambda batch: STAGES.post(batch, spans), generated, repetitions)
    yield _measured(
        "metrics", lambda batch: metrics.batch_done(batch, spans), answered, repetitions
    )


def _narrow(spec: ModelSpec) -> ModelSpec:
    """The same inputs for a model that costs next to nothing."""
    inputs = {
        name: replace(value, hash_rows=64) if isinstance(value, BagInput) else value
        for name, value in spec.inputs.items()
    }
    interformer = InterFormerSpec(
        blocks=1, d_model=16, heads=2, d_ff=24, context_tokens=9, non_sequence_tokens=3, bag_dim=8
    )
    decoder = replace(spec.decoder, layers=1, d_model=32, heads=2, d_head=16, d_ff=24)
    encoder = EncoderSpec(interformer=interformer)
    return replace(spec, inputs=inputs, encoder=encoder, decoder=decoder)


def _pair(spec: ModelSpec, snapshot: Snapshot) -> ServingPair:
    model = random_model(spec, seed=1).eval().requires_grad_(False)
    serving = ServingModel(
        spec=spec,
        checkpoint="measured",
        device=CPU,
        features=FastStage(model, torch.float32),
        generation=DrawnLeaves(snapshot.trie.num_leaves),
        engine=EngineFacts("fp32", 0, 0, 0, graphs=0, capture_seconds=0.0),
    )
    return serving_pair(snapshot, serving, POST_THREADS)


def _measured(
    stage: str, work: Callable[[Given], object], given: Sequence[Given], repetitions: int
) -> Row:
    alone, cpu = _times(work, given, repetitions)
    with _busy_thread():
        shared, _ = _times(work, given, repetitions)
    return Row(stage, *(round(median(each) * 1e6, 1) for each in (cpu, alone, shared)))


def _times(
    work: Callable[[Given], object], given: Sequence[Given], repetitions: int
) -> tuple[list[float], list[float]]:
    """Return the elapsed and the processor seconds of each batch, in this thread."""
    wall, cpu = [], []
    for _, batch in zip(range(repetitions), cycle(given), strict=False):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        work(batch)
        cpu.append(time.thread_time() - begin_cpu)
        wall.append(time.perf_counter() - begin)
    return wall, cpu


@contextmanager
def _busy_thread() -> Iterator[None]:
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            sum(range(100))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
