"""The first stage: requests to the rows and tensors that the model reads.

C++ reads all of a batch's requests together. What one of them does wrong fails that request alone:
the others are then read again, without it.

The users come first. A GPU then makes their masks of eligible nodes while C++ reads the features.
"""

from collections.abc import Sequence
from dataclasses import replace

from grace.index.users.user_rows import UserRows
from grace.kernels import UserTensors
from grace.model.engine.device_copy import Staging
from grace.model.engine.feature_stage import BatchFeatures
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError, invalid_field, wrong_pair
from grace.server.messages import Failure, InputBatch, PendingRequest, RequestBatch, Retrieval
from grace.server.stages.requests import refusal_of


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    failures: list[Failure] = []
    wrong = [_wrong_pair(each.retrieval, batch.pair) for each in batch.requests]
    requests = _without_faults(batch.requests, wrong, failures)
    made, faults = _read(batch, requests)
    if any(faults):
        requests = _without_faults(requests, faults, failures)
        staged = made.staged
        del made  # its masks make room for the next ones
        made, _ = _read(batch, requests)
        made = replace(made, staged=(*staged, *made.staged))  # a copy may still read the first
    return replace(made, failures=tuple(failures))


def _read(
    batch: RequestBatch, requests: Sequence[PendingRequest]
) -> tuple[InputBatch, list[ServiceError | None]]:
    """Read the requests, each into its row, and fill the bucket with empty rows. Also return the
    fault of each request, or None. The row of a faulty request is empty."""
    pair = batch.pair
    messages = [request.retrieval.message for request in requests]
    for_users, for_features = Staging(pair.model.blocks), Staging(pair.model.blocks)
    of_users = pair.users.read(messages, batch.bucket, for_users.arrays)
    users = UserTensors.given(of_users.rows, for_users.send(of_users.rows.arrays()))
    if not any(of_users.faults):  # otherwise these rows are not the batch's
        users = pair.with_eligible(users)
    features = pair.model.features.read(messages, batch.bucket, for_features)
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
        features=features.compute,
        staged=(for_users, for_features),
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
    features: BatchFeatures,
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
