"""The first stage: requests to the rows and tensors that the model reads.

C++ reads all of a batch's requests together. What one of them does wrong fails that request alone:
the others are then read again, without it.
"""

from collections.abc import Sequence

import torch

from grace.index.users.user_rows import UserRows
from grace.kernels import QueryTensors, UserTensors
from grace.model.engine.device_copy import copied_together
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.feature_reader import ReadFeatures
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError, wrong_pair
from grace.server.messages import Failure, InputBatch, PendingRequest, RequestBatch, Retrieval
from grace.server.stages.requests import refusal_of

CPU = torch.device("cpu")


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    pair = batch.pair
    failures: list[Failure] = []
    requests = _without_faults(
        batch.requests, [_wrong_pair(each.retrieval, pair) for each in batch.requests], failures
    )
    rows, features, faults = _read(batch, requests)
    if any(faults):
        requests = _without_faults(requests, faults, failures)
        rows, features, _ = _read(batch, requests)
    users, inputs = _on_device(UserTensors.of(rows, CPU), features.inputs, pair.device)
    return InputBatch(
        batch=batch,
        requests=tuple(requests),
        failures=tuple(failures),
        ignored=_ignored(requests, rows, features, pair.snapshot.schema.entities),
        user_rows=rows,
        users=users,
        inputs=inputs,
    )


def _read(
    batch: RequestBatch, requests: Sequence[PendingRequest]
) -> tuple[UserRows, ReadFeatures, list[ServiceError | None]]:
    """The rows of these requests, and of as many empty ones as the bucket has places left."""
    messages = [request.retrieval.message for request in requests]
    features = batch.pair.model.features.read(messages, batch.bucket)
    users = batch.pair.users.read(messages, batch.bucket)
    found = zip(features.faults, users.faults, strict=True)
    return users.rows, features, [refusal_of(one or other) for one, other in found]


def _ignored(
    requests: Sequence[PendingRequest],
    rows: UserRows,
    features: ReadFeatures,
    entities: tuple[str, ...],
) -> tuple[tuple[str, ...], ...]:
    """The names of each request that neither the schema nor the model knows, sorted."""
    # Rows of padding, which have no request, come last.
    of_requests = zip(requests, rows.ignored, features.ignored, strict=False)
    return tuple(
        tuple(sorted({*of_user, *of_features, *request.retrieval.unknown_entities(entities)}))
        for request, of_user, of_features in of_requests
    )


def _without_faults(
    requests: Sequence[PendingRequest],
    faults: Sequence[ServiceError | None],
    failures: list[Failure],
) -> list[PendingRequest]:
    """The requests without a fault; the others are added to the failures."""
    good = []
    for request, fault in zip(requests, faults, strict=True):
        if fault is None:
            good.append(request)
        else:
            failures.append(Failure(request, fault))
    return good


def _on_device(
    users: UserTensors, inputs: FeatureLookups, device: torch.device
) -> tuple[UserTensors, FeatureLookups]:
    """In one copy, without waiting for it: what runs later on the same stream sees it."""
    if device.type == "cpu":
        return users, inputs
    queries = [tensor for each in users.sets for tensor in each.tensors()]
    there = copied_together((users.bitmask, *queries, *inputs.tensors()), device)
    inputs_begin = 1 + len(queries)
    sets = tuple(QueryTensors(*there[i : i + 4]) for i in range(1, inputs_begin, 4))
    return UserTensors(there[0], sets), FeatureLookups(*there[inputs_begin:])


def _wrong_pair(retrieval: Retrieval, pair: ServingPair) -> ServiceError | None:
    loaded = pair.snapshot.facts.sid_space
    if retrieval.model and retrieval.model != pair.checkpoint:
        return wrong_pair(
            "model",
            f"{retrieval.model!r} is asked for, but {pair.checkpoint!r} is loaded; send its id, "
            "or none to take whichever is loaded",
        )
    if retrieval.sid_space and retrieval.sid_space != loaded:
        return wrong_pair(
            "sid_space",
            f"the sequences are in {retrieval.sid_space!r}, but {loaded!r} is loaded; "
            "send SIDs of that space",
        )
    return None
