"""The first stage: requests to the rows and tensors that the model reads.

What one request does wrong fails that request alone. What hardly ever fails is done at once for
the batch, and one by one only when that fails: users and features that C++ reads directly
(`grace.index.users.native_users`, `grace.model.engine.native_lookups`), user rows. All others are
encoded one by one.

Whoever reads what a caller sent does so within `_Alone`, even if another reader has understood it:
two readers may disagree about odd bytes. What works on the batch as a whole is given what has been
read, or what C++ has understood, which fails nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from google.protobuf.message import DecodeError

from grace.configs.errors import RequestError
from grace.index.users.user_rows import UserAttributes, UserRows
from grace.kernels import QueryTensors, UserTensors
from grace.model.definition.input_encoding import EncodedRequest
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.feature_stage import BatchInputs
from grace.model.engine.native_lookups import DirectInputs
from grace.model.engine.one_copy import copied_together
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import (
    InternalError,
    InvalidRequest,
    ServiceError,
    WrongPair,
    malformed,
)
from grace.server.messages import Failure, InputBatch, PendingRequest, RequestBatch, Retrieval
from grace.server.observe.logs import LOGGER, places_of

__all__ = ["prepare_inputs"]

CPU = torch.device("cpu")

_LOG = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class _Read:
    """A request whose inputs the model can read; `inputs` None if C++ has read them."""

    request: PendingRequest
    inputs: EncodedRequest | None
    ignored: tuple[str, ...]


class _Alone:
    """What fails within is the failure of this request, and the batch goes on without it."""

    __slots__ = ("_failures", "_request")

    def __init__(self, request: PendingRequest, failures: list[Failure]) -> None:
        self._request = request
        self._failures = failures

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failures.append(Failure(self._request, _fault_of(self._request, error)))
        return True


def prepare_inputs(batch: RequestBatch) -> InputBatch:
    pair = batch.pair
    failures: list[Failure] = []
    direct = _direct(batch, batch.requests)
    readable = _with_features(batch, direct, failures)
    readable, rows = _with_users(batch, readable, failures)
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
    """Those for this pair whose features can be read, all by C++ or all encoded one by one."""
    readable: list[_Read] = []
    for row, request in enumerate(batch.requests):
        with _Alone(request, failures):
            _require_pair(request.retrieval, batch.pair)
            if direct is not None and direct.understood[row]:
                readable.append(_Read(request, None, direct.ignored[row]))
            else:
                readable.append(_encoded(batch, request))
    if len({read.inputs is None for read in readable}) < 2:
        return readable
    encoded: list[_Read] = []
    for read in readable:
        with _Alone(read.request, failures):
            encoded.append(read if read.inputs is not None else _encoded(batch, read.request))
    return encoded


def _encoded(batch: RequestBatch, request: PendingRequest) -> _Read:
    inputs = batch.pair.model.inputs.encode(request.retrieval.features.read())
    return _Read(request, inputs, inputs.ignored)


def _inputs(
    batch: RequestBatch, direct: DirectInputs | None, readable: Sequence[_Read]
) -> BatchInputs:
    """`direct` is of the whole batch, of which `readable` are those that are left."""
    encoded = [read.inputs for read in readable if read.inputs is not None]
    if encoded or direct is None:
        return batch.pair.model.features.batch(encoded, batch.bucket)
    if len(readable) < len(batch.requests):
        direct = _direct(batch, [read.request for read in readable])
        assert direct is not None
        assert all(direct.understood), "C++ understood them among others"
    return direct.inputs


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


def _with_users(
    batch: RequestBatch, readable: list[_Read], failures: list[Failure]
) -> tuple[list[_Read], UserRows]:
    """Those whose users can be encoded, and the rows of these and of as many empty users as the
    bucket has places left."""
    encoder = batch.pair.users
    direct = encoder.direct([read.request.retrieval.user for read in readable], batch.bucket)
    if direct is not None and all(direct.understood):
        return readable, direct.rows
    kept: list[_Read] = []
    users: list[UserAttributes] = []
    for read in readable:
        with _Alone(read.request, failures):
            user = read.request.retrieval.user.read()
            encoder.encode([user])
            users.append(user)
            kept.append(read)
    return kept, encoder.encode([*users, *[{}] * (batch.bucket - len(users))])


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
    if isinstance(error, DecodeError):
        return malformed()
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
