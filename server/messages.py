"""What one stage passes to the next: these types are the pipeline in short.

    Retrieval -> PendingRequest -> RequestBatch --input--> InputBatch --features--> FeatureBatch
                                     --generate--> GeneratedBatch --post--> AnsweredBatch

A batch is bound to one snapshot and one checkpoint when it forms, and keeps them to its end. Its
tensors have as many rows as its bucket; requests have the first rows, the others are empty.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from grace.configs.arrays import Int64
from grace.configs.generation import BeamProfile
from grace.index.matching.exact import MatchCounts
from grace.index.users.user_rows import UserRows
from grace.kernels import UserTensors
from grace.model.engine.device_copy import Staging
from grace.model.engine.feature_stage import Features
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError

Priority: TypeAlias = Literal["NORMAL", "LOW"]
StageName: TypeAlias = Literal["input", "features", "generate", "post"]
PRIORITY_NAMES: tuple[Priority, ...] = get_args(Priority)
"""The priorities, in the order in which their requests start."""
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)


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
    exclude_ads: Int64
    exclude: Mapping[str, Int64]  # by names of entities, known or not
    at_most: Mapping[str, int]
    include_sids: bool
    strict: bool = False
    at: int = 0  # 0: the batch's


class RequestState(Enum):
    """Where a request is. NEW -> WAITING -> TAKEN -> ENDED, or shorter."""

    NEW = auto()
    WAITING = auto()  # in the queue
    TAKEN = auto()  # out of the queue: its outcome is on its way
    UNWANTED = auto()  # taken, and its caller has gone
    ENDED = auto()  # its outcome was passed on, or its caller took it back


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request on its way from the front end to its outcome. Two of them are never equal."""

    retrieval: Retrieval
    arrived: float  # time.perf_counter() when it was read, and its waiting began
    deadline: float  # on the same clock; infinite if the caller set none
    connection: str = ""  # the caller's end of the call's connection
    # the event loop's: only the front end sets it; None if no call waits, as in warm-up
    completion: "asyncio.Future[Outcome] | None" = None
    # the smaller profile that replaces the requested one, or empty; set by the scheduler
    degraded_to: str = ""
    state: RequestState = RequestState.NEW  # the scheduler's: read and written under its lock only
    # For the log, of its batch. The pipeline sets both before it passes the outcome on.
    batch_size: int = 0
    spans: "tuple[Span, ...]" = ()

    @property
    def profile(self) -> str:
        """The beam profile that generates its reply."""
        return self.degraded_to or self.retrieval.profile

    @property
    def degraded(self) -> bool:
        return self.degraded_to != ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ends with an error; the others of its batch go on."""

    request: PendingRequest
    error: ServiceError


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that ends with a reply, the bytes of a RetrieveResponse."""

    request: PendingRequest
    reply: bytes


Outcome: TypeAlias = Answer | Failure


@dataclass(frozen=True, slots=True)
class Span:
    """When a stage worked on a batch, by time.perf_counter()."""

    stage: StageName
    begin: float
    end: float


def queue_seconds(requests: Sequence[PendingRequest], spans: Sequence[Span]) -> list[float]:
    """Return how long each request of a batch has waited, anywhere, until the last span's end: the
    time since it arrived less the time that stages worked on it."""
    waited = spans[-1].end - sum(span.end - span.begin for span in spans)
    return [max(0.0, waited - request.arrived) for request in requests]


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests of one beam profile that start together.   1 <= len(requests) <= bucket"""

    pair: ServingPair
    profile_name: str
    profile: BeamProfile
    bucket: int
    requests: tuple[PendingRequest, ...]


@dataclass(frozen=True, slots=True)
class InputBatch:
    """A batch as the input stage has read it: request i has row i.

    `failures` are the requests that could not be read; they have no row. In mode `exact` the users
    also say which nodes are eligible.
    """

    batch: RequestBatch
    requests: tuple[PendingRequest, ...]
    failures: tuple[Failure, ...]
    ignored: tuple[tuple[str, ...], ...]  # of each request: names that the schema does not know
    at: int  # milliseconds since 1970; the time of requests that send none
    user_rows: UserRows  # [bucket], in the CPU's memory, for exact matching
    users: UserTensors  # [bucket], on the device
    features: Callable[[], Features]  # [bucket], computes them on the device
    staged: tuple[Staging, ...] = ()  # what holds the memory of these three


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    input: InputBatch
    features: Features  # [bucket]


@dataclass(frozen=True, slots=True)
class GeneratedBatch:
    """In the CPU's memory, readable once the event that travels with the batch has passed."""

    input: InputBatch
    leaves: Tensor  # int32 [bucket, num_sids]: best first; dead ones NO_NODE
    scores: Tensor  # float32 [bucket, num_sids]
    corrupt: Tensor  # bool [bucket], the model's numbers are not finite: the row has no meaning


@dataclass(frozen=True, slots=True)
class AnsweredBatch:
    """The last type: each request of the input batch is in `answers` or in `failures`."""

    input: InputBatch
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    counts: MatchCounts  # one entry for each answer, in the same order
