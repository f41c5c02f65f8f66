"""A snapshot and a checkpoint that go together, loaded on the device: what a batch is bound to."""

from dataclasses import dataclass
from pathlib import Path

import torch

from configs.generation import GenerationConfig
from index.exact import ExactMatcher
from index.snapshot import Snapshot
from index.storage import load_snapshot
from index.users import UserEncoder
from kernels import DecodeIndex, Ops, load_ops
from model.checkpoint import checkpoint_id, load_checkpoint, require_match
from model.input_encoding import InputEncoder
from model.model import Model

__all__ = ["ServingPair", "load_pair"]


@dataclass(frozen=True, eq=False)
class ServingPair:
    """Lives as long as anything refers to it: the server, and every batch bound to it."""

    snapshot: Snapshot
    model: Model
    checkpoint: str  # the checkpoint's id
    device: torch.device
    ops: Ops
    index: DecodeIndex
    users: UserEncoder
    inputs: InputEncoder
    matcher: ExactMatcher


def load_pair(
    snapshots: Path,
    checkpoint: Path,
    generation: GenerationConfig,
    device: torch.device,
    match_threads: int,
) -> ServingPair:
    """The current snapshot of a folder, verified, and a checkpoint of the same SID space."""
    ops = load_ops(device)
    snapshot = load_snapshot(snapshots)
    model = load_checkpoint(checkpoint, device)
    require_match(model.spec, snapshot, checkpoint)
    generation.require_steps(model.spec.sid_length)
    generation.require_vocabulary(model.spec.vocab_sizes)
    return ServingPair(
        snapshot=snapshot,
        model=model,
        checkpoint=checkpoint_id(checkpoint),
        device=device,
        ops=ops,
        index=DecodeIndex.of(snapshot, device),
        users=UserEncoder(snapshot.schema, snapshot.set_values),
        inputs=InputEncoder(model.spec),
        matcher=ExactMatcher(snapshot, match_threads),
    )
