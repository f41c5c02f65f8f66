"""The input stage where C++ reads features: what comes out is as if each were encoded by itself."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.feature_stage import FastStage
from grace.model.engine.native_lookups import DirectInputs
from grace.model.engine.wire_features import WireFeatures
from grace.proto.retrieval_pb2 import Features
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import InputBatch, PendingRequest
from grace.server.stages.input_stage import prepare_inputs
from support.serving_files import ServingFiles
from support.stage_cases import load_cpu_pair, request_batch


class PlainWay(FastStage):
    def direct(self, requests: Sequence[WireFeatures], size: int) -> DirectInputs | None:  # noqa: ARG002
        return None


class Counting(FastStage):
    """Says how often it was asked, and how many requests it was asked for at last."""

    calls = 0
    batched = 0

    def direct(self, requests: Sequence[WireFeatures], size: int) -> DirectInputs | None:
        self.calls += 1
        return super().direct(requests, size)

    def batch(self, *given: Any) -> Any:
        self.batched += 1
        return super().batch(*given)


@pytest.fixture(scope="module")
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return load_cpu_pair(serving_files.snapshots, serving_files.checkpoint)


@pytest.fixture(scope="module")
def stages(serving_files: ServingFiles) -> tuple[Counting, PlainWay]:
    model = load_checkpoint(serving_files.checkpoint)
    return Counting(model, torch.float32), PlainWay(model, torch.float32)


def tensors_of(prepared: InputBatch) -> list[torch.Tensor]:
    assert isinstance(prepared.inputs, FeatureLookups)
    queries = [tensor for each in prepared.users.sets for tensor in (each.offsets, each.hashes)]
    return [*prepared.inputs.tensors(), prepared.users.bitmask, *queries]


class BothWays:
    """Prepares batches both ways, and compares."""

    def __init__(self, pair: ServingPair, stages: tuple[Counting, PlainWay]) -> None:
        self.stage, plain = stages
        self.pair = replace(pair, model=replace(pair.model, features=self.stage))
        self.plain = replace(pair, model=replace(pair.model, features=plain))

    def prepare(
        self, requests: Sequence[Any], bucket: int, change: dict[int, WireFeatures] | None = None
    ) -> tuple[InputBatch, int, int]:
        """-> what was prepared, how often C++ was asked, how many batches were encoded plainly."""
        self.stage.calls = self.stage.batched = 0
        batch = request_batch(self.pair, requests, bucket)
        waiting = list(batch.requests)
        for row, features in (change or {}).items():
            retrieval = replace(waiting[row].retrieval, features=features)
            waiting[row] = PendingRequest(retrieval, 0.0, float("inf"))
        batch = replace(batch, requests=tuple(waiting))
        got = prepare_inputs(batch)
        expected = prepare_inputs(replace(batch, pair=self.plain))
        assert got.requests == expected.requests
        assert got.ignored == expected.ignored
        assert [(f.request, f.error.text) for f in got.failures] == [
            (f.request, f.error.text) for f in expected.failures
        ]
        for one, other in zip(tensors_of(got), tensors_of(expected), strict=True):
            assert torch.equal(one, other)
        return got, self.stage.calls, self.stage.batched


@pytest.fixture
def both(pair: ServingPair, stages: tuple[Counting, PlainWay]) -> BothWays:
    return BothWays(pair, stages)


@pytest.mark.parametrize("count", [1, 3, 7, 8])
def test_a_batch_is_read_at_once(both: BothWays, serving_files: ServingFiles, count: int) -> None:
    got, calls, batched = both.prepare(serving_files.requests[:count], 8)
    assert (len(got.requests), calls, batched) == (count, 1, 0)


FAULTS: dict[str, dict[str, Any]] = {
    "user": {"user": {"country": {"values": ["US", "*"]}}},
    "features": {"features": {"dense": {"hour": {"values": [1, 2]}}}},
    "kind": {"features": {"bags": {"hour": {"ids": [1]}}}},
    "sid_space": {"sid_space": "another"},
}


def faulty(request: Any, fault: str) -> Any:
    return {**request, **FAULTS[fault], "request_id": fault}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_faulty_request_the_others_are_read_again(
    both: BothWays, serving_files: ServingFiles, fault: str
) -> None:
    good = serving_files.requests
    got, calls, batched = both.prepare([*good[:3], faulty(good[3], fault), *good[4:6]], 7)
    assert [each.request.retrieval.request_id for each in got.failures] == [fault]
    assert (len(got.requests), calls, batched) == (5, 2, 0)


def test_faults_of_all_kinds_in_any_order_fail_alone(
    both: BothWays, serving_files: ServingFiles
) -> None:
    good = serving_files.requests
    for order in permutations(FAULTS):
        bad = [faulty(good[9], fault) for fault in order]
        got, _, _ = both.prepare([bad[0], good[0], *bad[1:3], good[1], bad[3]], 7)
        assert len(got.failures) == 4


def test_no_readable_request_is_a_batch_of_empty_ones(
    both: BothWays, serving_files: ServingFiles
) -> None:
    got, _, _ = both.prepare([faulty(serving_files.requests[0], "sid_space")], 4)
    assert not got.requests


def test_what_only_the_plain_way_reads_takes_its_batch_along(
    both: BothWays, serving_files: ServingFiles
) -> None:
    """A name that comes twice: the last one counts."""
    hours = []
    for hour in (3.0, 4.0):
        features = Features()
        features.dense["hour"].values.append(hour)
        hours.append(features.SerializeToString())
    twice = b"".join(hours)
    change = {1: WireFeatures(twice)}
    for requests in (serving_files.requests[:3], [*serving_files.requests[:2], bad_user()]):
        got, calls, batched = both.prepare(requests, 4, change)
        assert (calls, batched) == (1, 1)
        assert got.requests[1].retrieval.features is change[1]


def bad_user() -> dict[str, Any]:
    return {"request_id": "bad", **FAULTS["user"]}


def test_names_that_the_model_lacks_are_listed(both: BothWays, serving_files: ServingFiles) -> None:
    first, second, third = serving_files.requests[:3]
    clicks = {"sids": [], "side": {"price": {"ids": [1]}, "cost": {}}}
    sequences = dict.fromkeys(first["features"]["sequences"], clicks)
    unknown = {"bags": {"hats": {"ids": ["1"]}}, "dense": {"hats": {}}, "sequences": sequences}
    odd = {**second, "features": unknown}
    got, calls, batched = both.prepare([first, odd, third], 4)
    (name,) = sequences
    expected = ["bags.hats", "dense.hats"]
    expected += [f"sequences.{name}.side.{side}" for side in ("cost", "price")]
    assert got.ignored == ((), tuple(expected), ())
    assert (calls, batched) == (1, 0)
