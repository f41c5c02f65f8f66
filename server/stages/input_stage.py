"""The first stage: requests to the rows and tensors that the model reads.

C++ reads all of a batch's requests together. What one of them does wrong fails that request alone:
the others are then read again, without it.

The users come first. A GPU then makes their masks of eligible nodes while C++ reads the features.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from grace.index.users.user_rows import UserRows
from grace.kernels import UserTensors
from grace.model.engine.device_copy import copied_together
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.feature_reader import ReadFeatures
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError, invalid_field, wrong_pair
from grace.server.messages import Failure, InputBatch, PendingRequest, RequestBatch, Retrieval
from grace.server.stages.requests import refusal_of

CPU = torch.device("cpu")


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    failures: list[Failure] = []
    wrong = [_wrong_pair(each.retrieval, batch.pair) for each in batch.requests]
    requests = _without_faults(batch.requests, wrong, failures)
    made, faults = _read(batch, requests)
    if any(faults):
        requests = _without_faults(requests, faults, failures)
        del made  # its masks make room for the next ones
        made, _ = _read(batch, requests)
    return replace(made, failures=tuple(failures))


def _read(
    batch: RequestBatch, requests: Sequence[PendingRequest]
) -> tuple[InputBatch, list[ServiceError | None]]:
    """Read the requests, each into its row, and fill the bucket with empty rows. Also return the
    fault of each request, or None. The row of a faulty request is empty."""
    pair = batch.pair
    messages = [request.retrieval.message for request in requests]
    of_users = pair.users.read(messages, batch.bucket)
    users = _users_on_device(UserTensors.of(of_users.rows, CPU), pair.device)
    if not any(of_users.faults):  # otherwise these rows are not the batch's
        users = pair.with_eligible(users)
    features = pair.model.features.read(messages, batch.bucket)
    ignored = _ignored(requests, of_users.rows, features, pair.snapshot.schema.entities)
    found = zip(requests, features.faults, of_users.faults, ignored, strict=True)
    faults = [
        refusal_of(one or other) or _unknown_name(request.retrieval, names, pair)
        for request, one, other, names in found
    ]
    made = InputBatch(
        batch=batch,
        requests=tuple(requests),
        failures=(),
        ignored=ignored,
        user_rows=of_users.rows,
        users=users,
        inputs=_inputs_on_device(features.inputs, pair.device),
    )
    return made, faults


def _unknown_name(
    retrieval: Retrieval, ignored: tuple[str, ...], pair: ServingPair
) -> ServiceError | None:
    """Return the refusal of a strict request that has a name which would be ignored."""
    if not (retrieval.strict and ignored):
        return None
    schema = pair.snapshot.schema
    known = ", ".join((*schema.names, *schema.entities, *pair.model.spec.inputs))
    fault = f"no such name, and the request is strict; known: {known}; correct the name"
    return invalid_field(ignored[0], f"{fault}, or send the request without strict", "strict")


def _ignored(
    requests: Sequence[PendingRequest],
    rows: UserRows,
    features: ReadFeatures,
    entities: tuple[str, ...],
) -> tuple[tuple[str, ...], ...]:
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


def _users_on_device(users: UserTensors, device: torch.device) -> UserTensors:
    """In one copy, without waiting for it: what runs later on the same stream sees it."""
    if device.type == "cpu":
        return users
    there = iter(copied_together([tensor for each in users.asked for tensor in each], device))
    return UserTensors(tuple(each._make(islice(there, len(each))) for each in users.asked))


def _inputs_on_device(inputs: FeatureLookups, device: torch.device) -> FeatureLookups:
    """Copy all inputs in one copy, without waiting for it, like the users."""
    if device.type == "cpu":
        return inputs
    return FeatureLookups(*copied_together(inputs.tensors(), device))


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
