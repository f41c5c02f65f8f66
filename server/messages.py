"""What one stage hands to the next: reading this file is reading the pipeline.

    Retrieval -> PendingRequest -> RequestBatch --input--> InputBatch --features--> FeatureBatch
                                     --generate--> GeneratedBatch --post--> AnsweredBatch

A batch is bound to one snapshot and one checkpoint when it forms, and keeps them to its end. Its
tensors have as many rows as its bucket; requests have the first rows, the others are empty.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.index.matching.exact import MatchCounts
from grace.index.users.user_rows import UserRows
from grace.kernels import UserTensors
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine.feature_lookups import FeatureLookups
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError

__all__ = [
    "Answer",
    "AnsweredBatch",
    "Failure",
    "FeatureBatch",
    "GeneratedBatch",
    "InputBatch",
    "PendingRequest",
    "Priority",
    "RequestBatch",
    "Retrieval",
    "Span",
    "StageName",
]

Priority: TypeAlias = Literal["NORMAL", "LOW"]
StageName: TypeAlias = Literal["input", "features", "generate", "post"]


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One request as it was read: within the limits, not yet compared with snapshot and model.

    `message` is the whole of it, a grace.v1.RetrieveRequest; user and features are only there.
    """

    message: bytes
    request_id: str
    model: str  # a checkpoint id, or empty
    sid_space: str  # or empty
    max_ads: int
    profile: str  # one of the configuration's
    priority: Priority
    exclude_ads: npt.NDArray[np.int64]
    include_sids: bool


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """A request that somebody waits for. Two of them are never equal.

    arrived   time.perf_counter() when it was read, and its waiting began
    deadline  on the same clock; infinite if the caller set none
    """

    retrieval: Retrieval
    arrived: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ends with an error; the others of its batch go on."""

    request: PendingRequest
    error: ServiceError


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that ends with a reply, as the bytes of a RetrieveResponse."""

    request: PendingRequest
    reply: bytes


@dataclass(frozen=True, slots=True)
class Span:
    """When a stage worked on a batch, by time.perf_counter()."""

    stage: StageName
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests of one beam profile that start together.   1 <= len(requests) <= bucket"""

    pair: ServingPair
    profile_name: str
    profile: BeamProfile
    bucket: int
    requests: tuple[PendingRequest, ...]
    formed: float


@dataclass(frozen=True, slots=True)
class InputBatch:
    """What the input stage made of a batch: request i has row i.

    `failures` are requests of the batch that could not be read; they have no row.
    """

    batch: RequestBatch
    requests: tuple[PendingRequest, ...]
    failures: tuple[Failure, ...]
    ignored: tuple[tuple[str, ...], ...]  # of each request: names nobody knows
    user_rows: UserRows  # [bucket], in the CPU's memory, for exact matching
    users: UserTensors  # [bucket], on the device
    inputs: FeatureLookups  # [bucket], on the device


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    input: InputBatch
    features: FeatureTensors  # [bucket]


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """In the CPU's memory, readable once the event that travels with the batch has passed.

    leaves   int32 [bucket, num_sids]    best first; dead ones NO_NODE
    scores   float32 [bucket, num_sids]
    corrupt  bool [bucket]               the model's numbers were not finite; the row means nothing
    """

    input: InputBatch
    leaves: Tensor
    scores: Tensor
    corrupt: Tensor


@dataclass(frozen=True, slots=True)
class AnsweredBatch:
    """The end: each request of the input batch is in `answers` or in `failures`.

    counts are of the answers, in their order.
    """

    input: InputBatch
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    counts: MatchCounts
