"""A batch's whole way through one process: input, features, encoder and decoder, post.

The server's own stages, one after another and each batch waited for, without gRPC and without the
overlap of batches: a batch's latency, as the paper's column `full` has it. Only what generates is
the rung's, as one CUDA graph with the encoder. Without constraints there is no catalogue to look
SIDs up in: the way ends with the SIDs in the host's memory.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

import torch

from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.found import Found, TracedFound
from grace.bench.gpu.replay import Replay
from grace.bench.gpu.requests import full_requests
from grace.bench.gpu.rung_runs import RungRun
from grace.bench.gpu.subject import Engine, Subject
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.machine import available_cores
from grace.configs.serving import LimitsConfig
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors
from grace.kernels.encoder.encoder_ops import load_encoder_ops
from grace.model.definition.beam_search import Generated, leaves_of
from grace.model.definition.inputs import FeatureTensors, SequenceTensors, UserContext
from grace.model.engine.captured_generation import copy_features, features_of_nobody
from grace.model.engine.fast_weights import Precision
from grace.model.engine.feature_reader import read_inputs
from grace.model.engine.feature_stage import FeatureStage, feature_stage_for
from grace.model.engine.prefix_memo import PrefixMemo
from grace.server.engine.serving_model import EngineFacts, ServingModel
from grace.server.engine.serving_pair import ServingPair
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

__all__ = ["FullPath", "RungGeneration", "Surroundings", "Way", "measured_requests"]

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
        self._plain_encoder = deepcopy(model.encoder)
        model.encoder.to(dtype)
        self.subject, self.engine = subject, engine
        self.snapshot, self.index, self.precision = snapshot, index, precision
        self.users = UserEncoder(snapshot.schema, snapshot.set_values)
        self.matcher = ExactMatcher(snapshot, min(_MATCH_THREADS, available_cores()))
        self.stage: FeatureStage = feature_stage_for(model, dtype)
        self.nobody = features_of_nobody(model, subject.batch, dtype)

    @torch.inference_mode()
    def plain_context(self, requests: Sequence[Retrieval]) -> UserContext:
        """By definition, in float32, of the features' tables as they are held."""
        messages = [request.message for request in requests]
        inputs = read_inputs(self.subject.spec, messages, len(messages))
        features = self.engine.plain.features(inputs.to(self.engine.weights.device))
        single = features.non_sequence
        context: UserContext = self._plain_encoder(
            FeatureTensors(
                None if single is None else single.float(),
                tuple(SequenceTensors(s.states.float(), s.mask) for s in features.sequences),
            )
        )
        return context

    def pair(self, run: RungRun, users: UserTensors) -> tuple[ServingPair, "RungGeneration"]:
        """`users` are whoever the graph is recorded with."""
        device = self.engine.weights.device
        spec = self.subject.spec
        generation = RungGeneration(self.engine, run, self.nobody, users)
        model = ServingModel(
            spec=spec,
            checkpoint="measured",
            device=device,
            features=self.stage,
            generation=generation,
            engine=EngineFacts(self.precision, 0, 0, 0, graphs=1, capture_seconds=0.0),
        )
        pair = ServingPair(self.snapshot, model, self.index, self.users, self.matcher)
        return pair, generation


class RungGeneration:
    """A rung in place of the server's generation; one batch at a time."""

    def __init__(
        self, engine: Engine, run: RungRun, features: FeatureTensors, users: UserTensors
    ) -> None:
        self._run, self._features, self._first_users = run, features, users
        self.memo: PrefixMemo | None = engine.memo
        run.point_at(users)
        encoder_ops = load_encoder_ops(engine.weights.device)

        @torch.inference_mode()
        def search() -> TracedFound:
            return run.search(engine.plain.encoder(features, encoder_ops))

        self._replay = Replay(search, engine.weights.device)
        self._last: TracedFound | None = None

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
        self._last = self._replay()
        found = self._last.found
        return Generated(leaves_of(found.nodes, index), found.scores, found.corrupt)

    def last(self) -> Found:
        """What the last batch came to, with nodes that tell which SID it is."""
        assert self._last is not None
        return self._run.told(self._last)


@dataclass(frozen=True, slots=True)
class Way:
    """What a batch came to; without a catalogue it has no replies."""

    generated: GeneratedBatch
    answered: AnsweredBatch | None


class FullPath:
    """Call it to answer the next batch; `spans` are the stages of the last one."""

    def __init__(
        self, pair: ServingPair, run: RungRun, requests: Sequence[Sequence[Retrieval]]
    ) -> None:
        self.pair, self.run, self.requests = pair, run, requests
        self._batches = cycle(requests)
        self.spans: tuple[Span, ...] = ()

    def __call__(self) -> None:
        self.way(next(self._batches))

    def way(self, requests: Sequence[Retrieval]) -> Way:
        clock = _Laps()
        prepared = STAGES.input(self._batch(requests))
        clock.lap("input")
        features = STAGES.features(prepared)
        clock.lap("features")
        generated = STAGES.generate(features)
        if self.pair.device.type == "cuda":
            torch.cuda.current_stream(self.pair.device).synchronize()
        clock.lap("generate")
        answered = None
        if self.run.looks_up:
            answered = STAGES.post(generated, tuple(clock.spans))
            assert len(answered.answers) == len(prepared.requests)
        clock.lap("post")
        self.spans = tuple(clock.spans)
        return Way(generated, answered)

    def _batch(self, requests: Sequence[Retrieval]) -> RequestBatch:
        now = perf_counter()
        return RequestBatch(
            self.pair,
            _PROFILE,
            self.run.profile,
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
