"""A batch's whole way through one process: input, features, encoder and decoder, post.

The server's own stages, one after another and each batch waited for, without gRPC and without the
overlap of batches: a batch's latency, as the paper's column `full` has it. Only what generates is
the rung's, as one CUDA graph with the encoder. Without constraints there is no catalogue to look
SIDs up in: the way ends with the SIDs in the host's memory.
"""

from collections.abc import Sequence
from itertools import cycle
from time import perf_counter

import torch

from bench.gpu.catalogue import Catalogue
from bench.gpu.replay import Replay
from bench.gpu.requests import full_requests
from bench.gpu.rung_runs import Found, RungRun
from bench.gpu.subject import Engine, Subject
from configs.generation import BeamProfile, GenerationConfig
from configs.machine import available_cores
from configs.serving import LimitsConfig
from index.exact import ExactMatcher
from index.snapshot import Snapshot
from index.users import UserEncoder
from kernels import DecodeIndex, UserTensors
from kernels.encoder_ops import load_encoder_ops
from model.beam_search import Generated, leaves_of
from model.captured_generation import copy_features, features_of_nobody
from model.fast_weights import Precision
from model.feature_stage import FeatureStage, feature_stage_for
from model.input_encoding import InputEncoder
from model.inputs import FeatureTensors
from model.prefix_memo import PrefixMemo
from server.messages import PendingRequest, RequestBatch, Retrieval, Span, StageName
from server.requests import read_request
from server.serving_model import EngineFacts, ServingModel
from server.serving_pair import ServingPair
from server.stages import STAGES

__all__ = ["FullPath", "Surroundings", "measured_requests"]

_PROFILE = "measured"
_MATCH_THREADS = 8


class Surroundings:
    """What all rungs of one precision have around their decoder."""

    def __init__(
        self,
        subject: Subject,
        engine: Engine,
        snapshot: Snapshot,
        index: DecodeIndex,
        precision: Precision,
    ) -> None:
        dtype = engine.weights.dtype
        model = engine.plain
        model.encoder.to(dtype)
        self.subject, self.engine = subject, engine
        self.snapshot, self.index, self.precision = snapshot, index, precision
        self.users = UserEncoder(snapshot.schema, snapshot.set_values)
        self.matcher = ExactMatcher(snapshot, min(_MATCH_THREADS, available_cores()))
        self.stage: FeatureStage = feature_stage_for(model, dtype)
        self.nobody = features_of_nobody(model, subject.batch, dtype)

    def pair(self, run: RungRun, users: UserTensors) -> ServingPair:
        """`users` are whoever the graph is recorded with."""
        device = self.engine.weights.device
        spec = self.subject.spec
        model = ServingModel(
            spec=spec,
            checkpoint="measured",
            device=device,
            inputs=InputEncoder(spec),
            features=self.stage,
            generation=_RungGeneration(self.engine, run, self.nobody, users),
            engine=EngineFacts(self.precision, 0, 0, 0, graphs=1, capture_seconds=0.0),
        )
        return ServingPair(self.snapshot, model, self.index, self.users, self.matcher)


class _RungGeneration:
    """A rung in place of the server's generation; one batch at a time."""

    def __init__(
        self, engine: Engine, run: RungRun, features: FeatureTensors, users: UserTensors
    ) -> None:
        self._run, self._features, self._first_users = run, features, users
        self.memo: PrefixMemo | None = engine.memo
        run.point_at(users)
        encoder_ops = load_encoder_ops(engine.weights.device)

        @torch.inference_mode()
        def search() -> Found:
            return run.search(engine.plain.encoder(features, encoder_ops))

        self._replay = Replay(search, engine.weights.device)

    @torch.inference_mode()
    def generate(
        self,
        features: FeatureTensors,
        users: UserTensors,
        index: DecodeIndex,
        profile: BeamProfile,
    ) -> Generated:
        assert profile == self._run.profile
        self._run.point_at(users)
        copy_features(features, self._features)
        found = self._replay()
        return Generated(leaves_of(found.nodes, index), found.scores, found.corrupt)


class FullPath:
    """Call it to answer the next batch; `spans` are the stages of the last one."""

    def __init__(
        self, pair: ServingPair, run: RungRun, requests: Sequence[Sequence[Retrieval]]
    ) -> None:
        self._pair, self._run = pair, run
        self._batches = cycle(requests)
        self.spans: tuple[Span, ...] = ()

    def __call__(self) -> None:
        clock = _Laps()
        prepared = STAGES.input(self._next_batch())
        clock.lap("input")
        features = STAGES.features(prepared)
        clock.lap("features")
        generated = STAGES.generate(features)
        if self._pair.device.type == "cuda":
            torch.cuda.current_stream(self._pair.device).synchronize()
        clock.lap("generate")
        if self._run.looks_up:
            answered = STAGES.post(generated, tuple(clock.spans))
            assert len(answered.answers) == len(prepared.requests)
        clock.lap("post")
        self.spans = tuple(clock.spans)

    def _next_batch(self) -> RequestBatch:
        now = perf_counter()
        requests = next(self._batches)
        return RequestBatch(
            self._pair,
            _PROFILE,
            self._run.profile,
            len(requests),
            tuple(PendingRequest(each, now, float("inf")) for each in requests),
            now,
        )


class _Laps:
    def __init__(self) -> None:
        self._begin = perf_counter()
        self.spans: list[Span] = []

    def lap(self, stage: StageName) -> None:
        end = perf_counter()
        self.spans.append(Span(stage, self._begin, end))
        self._begin = end


def measured_requests(
    subject: Subject, catalogue: Catalogue, batches: int
) -> list[list[Retrieval]]:
    """Read from their wire form, as a server reads them."""
    profiles = GenerationConfig(subject.batch, {_PROFILE: subject.dynamic}, _PROFILE)
    users = catalogue.attributes(0, batches * subject.batch)
    sid_space = catalogue.spec.sid_space
    requests = []
    for request in full_requests(subject.spec, users, seed=1):
        request.sid_space = sid_space
        requests.append(read_request(request.SerializeToString(), LimitsConfig(), profiles))
    return [requests[i : i + subject.batch] for i in range(0, len(requests), subject.batch)]
