"""Pairs that generate in several ways, over two snapshots, and how their replies compare."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from grace.configs.serving import ServingConfig
from grace.index.builder import BuildSpec, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.kernels import load_ops
from grace.model.checkpoints.checkpoint import load_encoder_decoder
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.feature_stage import FastStage
from grace.model.engine.generation import EngineSettings
from grace.model.engine.precision import Precision
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.engine.serving_pair import ServingPair, load_pair, serving_pair
from grace.server.messages import Answer, PendingRequest
from grace.server.scheduling.streams import streams_for
from grace.server.stages.stages import STAGES
from support.pipeline_cases import LONG, Recorder, make_pipeline
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, JsonRequest, load_cpu_pair, retrieval_of

CPU = torch.device("cpu")
MEMO_BYTES = 1 << 22
"""Enough for every step of the tiny model."""


def half_of_the_ads(files: ServingFiles) -> Path:
    """The folder of a snapshot of version 2, made once."""
    root = files.folder / "half"
    if not root.exists():
        catalogue = files.catalogue
        ads = pq.read_table(catalogue / "ads.parquet")
        kept = files.folder / "half.parquet"
        pq.write_table(ads.take(list(range(0, len(ads), 2))), kept)
        spec = BuildSpec(DataFolder(catalogue, TableSource((str(kept),))), root)
        for _ in range(2):
            build(spec, lambda step, done, total: None)
    return root


def two_snapshots(pair: ServingPair, files: ServingFiles) -> tuple[ServingPair, ServingPair]:
    """Return the pair, and one whose snapshot has every other ad."""
    snapshot = load_snapshot(half_of_the_ads(files))
    config = ServingConfig(files.snapshots, files.checkpoint, GENERATION)
    return pair, serving_pair(snapshot, pair.model, config)


def fast_cpu_pair(snapshots: Path, checkpoint: Path) -> ServingPair:
    """A pair that computes as a GPU does, but eagerly and in the CPU's float32."""
    pair, model = load_cpu_pair(snapshots, checkpoint), load_encoder_decoder(checkpoint)
    fast = replace(
        pair.model,
        features=FastStage(model, torch.float32),
        generation=FastGeneration(model, load_ops(CPU), EngineSettings("fp32", MEMO_BYTES)),
    )
    return replace(pair, model=fast)


def captured_pair(snapshots: Path, checkpoint: Path, precision: Precision = "fp32") -> ServingPair:
    settings: dict[str, Any] = {"precision": precision, "memo_bytes": MEMO_BYTES}
    config = ServingConfig(snapshots, checkpoint, GENERATION, **settings)
    return load_pair(config, torch.device("cuda:0"))


def whole(request: JsonRequest, name: str, profile: str = "full") -> dict[str, object]:
    """All of its ads, with their SIDs."""
    return {
        **request,
        "request_id": name,
        "profile": profile,
        "max_ads": 1000,
        "include_sids": True,
    }


def answers_of(
    pairs: Iterable[ServingPair], requests: Sequence[JsonRequest], device: torch.device
) -> dict[str, RetrieveResponse]:
    """Through a pipeline, all at once; batches are bound to the pairs in turn, for ever."""
    recorder, turn = Recorder(), iter(pairs)
    pipeline = make_pipeline(
        STAGES,
        recorder,
        max_waiting=len(requests),
        streams=streams_for(device),
        pair=lambda: next(turn),
        generation=GENERATION,
    )
    pipeline.start()
    for request in requests:
        pipeline.scheduler.submit(PendingRequest(retrieval_of(request), 0.0, float("inf")))
    pipeline.close()
    assert pipeline.join(LONG)
    assert not recorder.deaths
    replies = {}
    for end in recorder.ends:
        assert isinstance(end, Answer), end.error
        reply = RetrieveResponse.FromString(end.reply)
        replies[reply.request_id] = reply
    assert len(replies) == len(requests)
    return replies


def assert_same_answers(got: RetrieveResponse, expected: RetrieveResponse) -> None:
    """The same SIDs and ads; scores to a relative tolerance."""
    assert got.snapshot_version == expected.snapshot_version
    assert scores_of(got) == pytest.approx(scores_of(expected), rel=1e-4)
    assert dict(zip(got.ad_ids, got.scores, strict=True)) == pytest.approx(
        dict(zip(expected.ad_ids, expected.scores, strict=True)), rel=1e-4
    )
    assert got.counts == expected.counts


def scores_of(reply: RetrieveResponse) -> dict[tuple[int, ...], float]:
    length = reply.sids.length
    tokens = list(reply.sids.tokens)
    sids = [tuple(tokens[i : i + length]) for i in range(0, len(tokens), length)]
    return dict(zip(sids, reply.sids.scores, strict=True))
