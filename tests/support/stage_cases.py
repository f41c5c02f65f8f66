"""Batches for the stages, straight from requests as JSON, and what comes out of all four."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
import torch
from google.protobuf.json_format import ParseDict

from grace.bench.load.tiny_server import TINY
from grace.configs.serving import LimitsConfig, ServingConfig, ThreadsConfig
from grace.index.targeting.schema import TargetingSchema
from grace.index.updates.state import UpdateState
from grace.index.updates.update import read_update
from grace.model.checkpoints.init import load_model_config
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse, UpdateAdsRequest
from grace.server.engine.serving_pair import ServingPair, load_pair
from grace.server.messages import AnsweredBatch, PendingRequest, RequestBatch, Retrieval, Span
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES, Stages
from support.oracle import RawAd, Rules

JsonRequest = Mapping[str, Any]

GENERATION = load_model_config(TINY).generation
DEFAULT_LIMITS = LimitsConfig()


def load_cpu_pair(snapshots: Path, checkpoint: Path) -> ServingPair:
    config = ServingConfig(snapshots, checkpoint, GENERATION, threads=ThreadsConfig(post=1))
    return load_pair(config, torch.device("cpu"))


def stop(
    pair: ServingPair, ads: Collection[int], weights: Mapping[int, float] = MappingProxyType({})
) -> None:
    """Stop these ads, and no others, and let these have live weights."""
    state = UpdateState()
    full = UpdateAdsRequest(sequence=1, kind=UpdateAdsRequest.KIND_FULL)
    full.stop["ad"].ids.extend(ads)
    for ad_id, weight in weights.items():
        full.weights.add(ad_id=ad_id, weight=weight)
    state.apply(read_update(full.SerializeToString()))
    pair.live.rebuild(state)


def message_of(request: JsonRequest) -> bytes:
    return ParseDict(dict(request), RetrieveRequest()).SerializeToString()


def retrieval_of(request: JsonRequest, limits: LimitsConfig = DEFAULT_LIMITS) -> Retrieval:
    return read_request(message_of(request), limits, GENERATION)


def request_batch(
    pair: ServingPair,
    requests: Sequence[JsonRequest],
    bucket: int,
    profile: str = "full",
    limits: LimitsConfig = DEFAULT_LIMITS,
) -> RequestBatch:
    now = perf_counter()
    return RequestBatch(
        pair=pair,
        profile_name=profile,
        profile=GENERATION.profiles[profile],
        bucket=bucket,
        requests=tuple(
            PendingRequest(retrieval_of(request, limits), now, float("inf")) for request in requests
        ),
    )


def answer(
    batch: RequestBatch, stages: Stages = STAGES, spans: tuple[Span, ...] = ()
) -> AnsweredBatch:
    """Through all four stages, one after the other."""
    generated = stages.generate(stages.features(stages.input(batch)))
    if batch.pair.device.type == "cuda":
        torch.cuda.synchronize()
    return stages.post(generated, spans)


def replies_of(answered: AnsweredBatch) -> dict[str, RetrieveResponse]:
    """Each reply by its request id, without the times, which are never the same twice."""
    replies = {}
    for one in answered.answers:
        reply = RetrieveResponse.FromString(one.reply)
        reply.ClearField("timings")
        replies[reply.request_id] = reply
    return replies


def raw_ads(path: Path, schema: TargetingSchema) -> list[RawAd]:
    """An ads file without groups or clauses, as the oracle sees it."""
    return [raw_ad(row, schema) for row in pq.read_table(path).to_pylist()]


def raw_ad(row: Mapping[str, Any], schema: TargetingSchema) -> RawAd:
    return RawAd(
        row["ad_id"],
        tuple(row["sid"]),
        row["ad_weight"],
        _rules(row, schema),
        {name: row[name] for name in schema.entities if row[name] is not None},
    )


def _rules(row: Mapping[str, Any], schema: TargetingSchema) -> Rules:
    lists = [*(each.name for each in schema.attributes), *(each.name for each in schema.sets)]
    rules: dict[str, Any] = {
        name: (_values(row.get(name)), _values(row.get(f"{name}_exclude"))) for name in lists
    }
    rules |= {x.name: tuple(row.get(x.name + end) for end in x.columns) for x in schema.ranges}
    for each in schema.flights:
        ends = (row.get(each.name + end) for end in each.columns)
        rules[each.name] = tuple(end and round(end.timestamp() * 1000) for end in ends)
    for target in schema.properties:
        rules[target.name] = _values(row.get(target.name)) or frozenset()
    return rules


def _values(listed: list[str] | str | None) -> frozenset[str] | None:
    return None if listed is None else frozenset([listed] if isinstance(listed, str) else listed)
