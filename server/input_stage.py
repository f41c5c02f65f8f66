"""The first stage: requests to the rows and tensors that the model reads.

What one request does wrong fails that request alone. What hardly ever fails is done at once for
the batch, and one by one only when that fails: users and features that C++ reads directly
(`index.native_users`, `model.native_lookups`), user rows. All others are encoded one by one.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from configs.errors import RequestError
from index.users import UserRows
from kernels import QueryTensors, UserTensors
from model.feature_lookups import FeatureLookups
from model.feature_stage import BatchInputs
from model.input_encoding import EncodedRequest
from model.native_lookups import DirectInputs
from model.one_copy import copied_together
from server.errors import InternalError, InvalidRequest, ServiceError, WrongPair
from server.fault_places import places_of
from server.logs import LOGGER
from server.messages import Failure, InputBatch, PendingRequest, RequestBatch, Retrieval
from server.serving_pair import ServingPair

__all__ = ["prepare_inputs"]

CPU = torch.device("cpu")

_LOG = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class _Read:
    """A request whose inputs the model can read; `inputs` None if C++ has read them."""

    request: PendingRequest
    inputs: EncodedRequest | None
    ignored: tuple[str, ...]


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    pair = batch.pair
    failures: list[Failure] = []
    direct = _direct(batch, batch.requests)
    readable = _with_features(batch, direct, failures)
    rows: UserRows | None
    try:
        rows = _user_rows(batch, readable)
    except Exception:  # noqa: BLE001 (the faulty ones are found, and failed, one by one)
        rows = None
    if rows is None:
        readable = _with_users(pair, readable, failures)
        rows = _user_rows(batch, readable)
    users, inputs = _on_device(
        UserTensors.of(rows, CPU),
        _inputs(batch, direct, readable),
        pair.device,
    )
    return InputBatch(
        batch=batch,
        requests=tuple(read.request for read in readable),
        failures=tuple(failures),
        ignored=tuple(
            tuple(sorted({*ignored, *read.ignored})) if ignored or read.ignored else ()
            for read, ignored in zip(readable, rows.ignored, strict=False)
        ),
        user_rows=rows,
        users=users,
        inputs=inputs,
    )


def _direct(batch: RequestBatch, requests: Sequence[PendingRequest]) -> DirectInputs | None:
    features = [request.retrieval.features for request in requests]
    return batch.pair.model.features.direct(features, batch.bucket)


def _with_features(
    batch: RequestBatch, direct: DirectInputs | None, failures: list[Failure]
) -> list[_Read]:
    """Those for this pair whose features can be read; the others become failures."""
    model = batch.pair.model
    readable: list[_Read] = []
    for row, request in enumerate(batch.requests):
        try:
            _require_pair(request.retrieval, batch.pair)
            if direct is not None and direct.understood[row]:
                readable.append(_Read(request, None, direct.ignored[row]))
            else:
                inputs = model.inputs.encode(request.retrieval.features.read())
                readable.append(_Read(request, inputs, inputs.ignored))
        except Exception as error:  # noqa: BLE001 (any fault of one request is that request's)
            failures.append(Failure(request, _fault_of(request, error)))
    return readable


def _inputs(
    batch: RequestBatch, direct: DirectInputs | None, readable: Sequence[_Read]
) -> BatchInputs:
    """`direct` is of the whole batch, of which `readable` are those that are left."""
    model = batch.pair.model
    if all(read.inputs is None for read in readable):
        if direct is not None and len(readable) < len(batch.requests):
            direct = _direct(batch, [read.request for read in readable])
        if direct is not None:
            return direct.inputs
    encoded = [
        read.inputs or model.inputs.encode(read.request.retrieval.features.read())
        for read in readable
    ]
    return model.features.batch(encoded, batch.bucket)


def _on_device(
    users: UserTensors, inputs: BatchInputs, device: torch.device
) -> tuple[UserTensors, BatchInputs]:
    """In one copy, without waiting for it: what runs later on the same stream sees it."""
    if device.type == "cpu":
        return users, inputs
    assert isinstance(inputs, FeatureLookups), "a GPU's features stage makes no other"
    queries = [tensor for each in users.sets for tensor in (each.offsets, each.hashes)]
    there = copied_together((users.bitmask, *queries, *inputs.tensors()), device)
    sets = range(1, 1 + len(queries), 2)
    return (
        UserTensors(there[0], tuple(QueryTensors(there[i], there[i + 1]) for i in sets)),
        FeatureLookups(*there[1 + len(queries) :]),
    )


def _user_rows(batch: RequestBatch, readable: list[_Read]) -> UserRows:
    """Those of the requests, and of as many empty users as the bucket has places left."""
    encoder = batch.pair.users
    users = [read.request.retrieval.user for read in readable]
    direct = encoder.direct(users, batch.bucket)
    if direct is not None and all(direct.understood):
        return direct.rows
    return encoder.encode([*(user.read() for user in users), *[{}] * (batch.bucket - len(users))])


def _with_users(pair: ServingPair, readable: list[_Read], failures: list[Failure]) -> list[_Read]:
    """Those whose users can be encoded; the others become failures."""
    kept: list[_Read] = []
    for read in readable:
        try:
            pair.users.encode([read.request.retrieval.user.read()])
        except Exception as error:  # noqa: BLE001 (any fault of one request is that request's)
            failures.append(Failure(read.request, _fault_of(read.request, error)))
        else:
            kept.append(read)
    return kept


def _require_pair(retrieval: Retrieval, pair: ServingPair) -> None:
    loaded = pair.snapshot.facts.sid_space
    if retrieval.model and retrieval.model != pair.checkpoint:
        raise WrongPair(
            "model",
            f"{retrieval.model!r} is asked for, but {pair.checkpoint!r} is loaded; send its id, "
            "or none to take whichever is loaded",
        )
    if retrieval.sid_space and retrieval.sid_space != loaded:
        raise WrongPair(
            "sid_space",
            f"the sequences are in {retrieval.sid_space!r}, but {loaded!r} is loaded; "
            "send SIDs of that space",
        )


def _fault_of(request: PendingRequest, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, RequestError):
        return InvalidRequest(error.field, error.fault)
    _LOG.error(
        "a request failed in the input stage",
        extra={
            "event": "request_failed",
            "request_id": request.retrieval.request_id,
            "stage": "input",
            "error": type(error).__name__,
            "places": places_of(error),
        },
    )
    return InternalError()
