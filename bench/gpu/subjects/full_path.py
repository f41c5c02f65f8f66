"""A batch's whole path through one process: input, features, encoder and decoder, post.

The server's own stages run one after another, and each batch is waited for, without gRPC and
without the overlap of batches: a batch's latency, as in the paper's column `full`. Only the
generation is the rung's, as one CUDA graph with features and encoder. Without constraints there is
no catalogue to look SIDs up in, and the path ends with the SIDs in the host's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import mean
from time import perf_counter

import torch

from grace.bench.gpu.instruments.measure import require_equal, require_overlap
from grace.bench.gpu.instruments.reply_check import check_replies
from grace.bench.gpu.subjects import search as searches
from grace.bench.gpu.subjects.catalogue import Catalogue, full_requests
from grace.bench.gpu.subjects.workload import Engine, Workload
from grace.configs.generation import GenerationConfig
from grace.configs.machine import available_cores
from grace.configs.options import Fp8Product
from grace.configs.serving import LimitsConfig
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.updates.live_ads import LiveAds
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.load import load_encoder_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import UserContext
from grace.model.engine.device_copy import Blocks
from grace.model.engine.encoder_decoder.fast_encoder import fast_encoder
from grace.model.engine.encoder_decoder.prefix_memo import PrefixMemo
from grace.model.engine.feature_reader import read_inputs
from grace.model.engine.feature_stage import (
    FastStage,
    Features,
    PlacedLookups,
    at_once,
    feature_stage_for,
)
from grace.model.engine.generation import SearchTask
from grace.model.engine.graph_generation import started_copy
from grace.model.engine.precision import Precision
from grace.server.engine.memory import EligibilityFacts
from grace.server.engine.serving_pair import EngineFacts, ServingModel, ServingPair, Shown
from grace.server.messages import (
    AnsweredBatch,
    GeneratedBatch,
    PendingRequest,
    RequestBatch,
    Retrieval,
    Span,
    StageName,
)
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES

_PROFILE = "measured"
_MATCH_THREADS = 16


@dataclass(frozen=True, eq=False)
class LoadedSnapshot:
    """A snapshot, and what a server makes of it."""

    snapshot: Snapshot
    index: DecodeIndex
    users: UserEncoder
    matcher: ExactMatcher

    @staticmethod
    def of(snapshot: Snapshot, device: torch.device) -> "LoadedSnapshot":
        return LoadedSnapshot(
            snapshot,
            DecodeIndex.of(snapshot, device),
            UserEncoder(snapshot.schema, snapshot.set_values),
            ExactMatcher(snapshot, min(_MATCH_THREADS, available_cores())),
        )


class Surroundings:
    """Everything around the decoder, but the snapshot, that the rungs of one precision share."""

    def __init__(self, work: Workload, engine: Engine, precision: Precision) -> None:
        dtype = engine.weights.dtype
        model = engine.plain
        self.encoder = fast_encoder(model, dtype, load_encoder_ops(work.device))
        self.work, self.engine, self.precision = work, engine, precision
        self.stage = stage = feature_stage_for(model, dtype)
        self.recorded = stage.recorded(work.batch) if isinstance(stage, FastStage) else None

    @torch.inference_mode()
    def plain_context(self, requests: Sequence[Retrieval]) -> UserContext:
        """Return the encoder's definition, in float32, of the feature tables as they are stored."""
        model = self.engine.plain
        messages = [request.message for request in requests]
        inputs = read_inputs(self.work.spec, messages, len(messages)).to(self.work.device)
        context: UserContext = model.encoder(model.features(inputs).to(torch.float32))
        return context

    def pair(self, generation: "_RungGeneration", loaded: LoadedSnapshot) -> ServingPair:
        spec = self.work.spec
        model = ServingModel(
            spec=spec,
            checkpoint="measured",
            folder=Path("measured"),
            device=self.work.device,
            features=self.stage,
            blocks=Blocks(self.work.device),
            ops=self.engine.ops,
            generation=generation,
            engine=EngineFacts(self.precision, (), 0, 0, 0, graphs=1, capture_seconds=0.0),
        )
        return ServingPair(
            loaded.snapshot,
            model,
            loaded.index,
            loaded.users,
            loaded.matcher,
            LiveAds(loaded.snapshot),
            EligibilityFacts(),
            Shown(0),
        )


class _RungGeneration:
    """A rung in place of the server's generation; one batch at a time."""

    def __init__(self, around: Surroundings, search: searches.Search, users: UserTensors) -> None:
        """`users` are those that the graph is recorded with."""
        engine, self._search = around.engine, search
        self.memo: PrefixMemo | None = engine.memo
        self.fp8_products: tuple[Fp8Product, ...] = ()
        self.fp8_clipped, self.graphs = 0, 1
        self._features: Features | None = around.recorded  # on a CPU, those of the batch
        search.point_at(users)

        @torch.inference_mode()
        def run() -> searches.TracedResult:
            assert self._features is not None
            return search.run(around.encoder(at_once(self._features).to(engine.weights.dtype)))

        self._graph = around.work.record(run)
        self._last: searches.TracedResult | None = None

    @torch.inference_mode()
    def generate(self, features: Features, task: SearchTask) -> Generated:
        assert task.profile == self._search.profile
        assert task.trace is None, "a rung is not traced"
        self._search.point_at(task.users)
        if isinstance(self._features, PlacedLookups):
            assert isinstance(features, PlacedLookups)
            self._features.at.copy_(features.at, non_blocking=True)
        else:
            self._features = features
        self._last = self._graph()
        found = self._last.result
        made = Generated(task.index.leaves_of(found.nodes).int(), found.scores, found.corrupt)
        return Generated.unpacked(started_copy(made.packed()), len(task.users.bitmask))

    def last(self) -> searches.SearchResult:
        """The result of the last batch, with nodes that identify its SIDs."""
        assert self._last is not None
        return self._search.result(self._last)


class FullPath:
    """Call it to answer the next batch; `spans` are the stages of the last one."""

    def __init__(
        self,
        around: Surroundings,
        loaded: LoadedSnapshot,
        search: searches.Search,
        requests: Sequence[Sequence[Retrieval]],
        users: UserTensors,
    ) -> None:
        self.generation = _RungGeneration(around, search, users)
        self.pair = around.pair(self.generation, loaded)
        self.search, self.requests = search, requests
        self._batches = cycle(requests)
        self.spans: tuple[Span, ...] = ()

    def __call__(self) -> None:
        self.answer(next(self._batches))

    def answer(self, requests: Sequence[Retrieval]) -> tuple[GeneratedBatch, AnsweredBatch | None]:
        """Answer one batch; without a catalogue it has no replies."""
        spans: list[Span] = []
        begin = perf_counter()

        def end(stage: StageName) -> None:
            nonlocal begin
            now = perf_counter()
            spans.append(Span(stage, begin, now))
            begin = now

        prepared = STAGES.input(self._batch(requests))
        end("input")
        features = STAGES.features(prepared)
        end("features")
        generated = STAGES.generate(features)
        if self.pair.device.type == "cuda":
            torch.cuda.current_stream(self.pair.device).synchronize()
        end("generate")
        answered = None
        if self.search.constrained:
            answered = STAGES.post(generated, tuple(spans))
            assert len(answered.answers) == len(prepared.requests)
        end("post")
        self.spans = tuple(spans)
        return generated, answered

    def _batch(self, requests: Sequence[Retrieval]) -> RequestBatch:
        now = perf_counter()
        return RequestBatch(
            self.pair,
            _PROFILE,
            self.search.profile,
            len(requests),
            tuple(PendingRequest(each, now, float("inf")) for each in requests),
        )


def path_requests(work: Workload, catalogue: Catalogue, batches: int) -> list[list[Retrieval]]:
    """Return batches of requests, read from their wire form as a server reads them."""
    profiles = GenerationConfig(work.batch, {_PROFILE: work.dynamic}, _PROFILE)
    users = catalogue.attributes(0, batches * work.batch)
    sid_space = catalogue.spec.sid_space
    requests = []
    for request in full_requests(work.spec, users, seed=1):
        request.sid_space = sid_space
        requests.append(read_request(request.SerializeToString(), LimitsConfig(), profiles))
    return [requests[i : i + work.batch] for i in range(0, len(requests), work.batch)]


@torch.inference_mode()
def check_full_path(
    name: str, path: FullPath, expected: Sequence[searches.SearchResult], precision: Precision
) -> float:
    """Return the share of float32's SIDs; raise where a SID or a reply is wrong."""
    shares = []
    for number, (requests, wanted) in enumerate(zip(path.requests, expected, strict=True)):
        generated, answered = path.answer(requests)
        what = f"{name}, the whole path, batch {number}"
        got = path.generation.last()
        require_equal(f"{what}, scores on the host", generated.scores, got.scores.cpu())
        share = searches.overlap(got, wanted)
        require_overlap(f"{what} in {precision}", share, searches.LEAST_OVERLAP[precision])
        shares.append(share)
        if answered is not None:
            leaves = path.pair.index.leaves_of(got.nodes).cpu()
            require_equal(f"{what}, SIDs on the host", generated.leaves, leaves)
            check_replies(name, path.pair.snapshot, generated, answered)
    return mean(shares)
