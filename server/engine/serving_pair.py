"""The pair that a batch is bound to: a snapshot and a model that go together, on one device."""

from dataclasses import dataclass

import torch

from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex
from grace.model.definition.spec import ModelSpec
from grace.model.engine.decode_weights import Precision
from grace.model.engine.feature_stage import FeatureStage
from grace.model.engine.generation import Generation


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How generation runs, as the log and GetStatus report it.

    memo_steps       the first steps, which look prefixes up; none on a CPU
    memo_bytes       the size of their tables
    next_memo_bytes  the size of the next step's tables; 0 if there is no next step
    graphs           recorded on a GPU, one for each batch size and beam profile
    capture_seconds  for folding the weights, the memo and all graphs
    """

    precision: Precision
    memo_steps: int
    memo_bytes: int
    next_memo_bytes: int
    graphs: int
    capture_seconds: float


@dataclass(frozen=True, eq=False)
class ServingModel:
    """A checkpoint on a device, ready to run for any number of snapshots."""

    spec: ModelSpec
    checkpoint: str  # its id
    device: torch.device
    features: FeatureStage
    generation: Generation
    engine: EngineFacts


@dataclass(frozen=True, eq=False)
class ServingPair:
    """Lives as long as the server or a batch refers to it."""

    snapshot: Snapshot
    model: ServingModel
    index: DecodeIndex
    users: UserEncoder
    matcher: ExactMatcher

    @property
    def checkpoint(self) -> str:
        """The checkpoint's id."""
        return self.model.checkpoint

    @property
    def device(self) -> torch.device:
        return self.model.device
