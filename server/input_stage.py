"""The first stage: requests to the rows and tensors that the model reads.

What one request does wrong fails that request alone, so everything that depends on a request's
values is encoded request by request; user rows, which hardly ever fail, all at once and one by one
only when that fails.
"""

import logging
from dataclasses import dataclass

import torch

from configs.errors import RequestError
from index.users import UserRows
from kernels import QueryTensors, UserTensors
from model.feature_lookups import FeatureLookups
from model.feature_stage import BatchInputs
from model.input_encoding import EncodedRequest
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
    """A request whose inputs the model can read."""

    request: PendingRequest
    inputs: EncodedRequest


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    pair = batch.pair
    readable: list[_Read] = []
    failures: list[Failure] = []
    for request in batch.requests:
        try:
            _require_pair(request.retrieval, pair)
            readable.append(_Read(request, pair.model.inputs.encode(request.retrieval.features)))
        except Exception as error:  # noqa: BLE001 (any fault of one request is that request's)
            failures.append(Failure(request, _fault_of(request, error)))
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
        pair.model.features.batch([read.inputs for read in readable], batch.bucket),
        pair.device,
    )
    return InputBatch(
        batch=batch,
        requests=tuple(read.request for read in readable),
        failures=tuple(failures),
        ignored=tuple(
            tuple(sorted({*ignored, *read.inputs.ignored}))
            for read, ignored in zip(readable, rows.ignored, strict=False)
        ),
        user_rows=rows,
        users=users,
        inputs=inputs,
    )


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
    users = [read.request.retrieval.user for read in readable]
    return batch.pair.users.encode([*users, *[{}] * (batch.bucket - len(users))])


def _with_users(pair: ServingPair, readable: list[_Read], failures: list[Failure]) -> list[_Read]:
    """Those whose users can be encoded; the others become failures."""
    kept: list[_Read] = []
    for read in readable:
        try:
            pair.users.encode([read.request.retrieval.user])
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
