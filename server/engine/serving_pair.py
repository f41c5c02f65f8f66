"""A snapshot and a checkpoint that go together, loaded on the device: what a batch is bound to."""

from dataclasses import dataclass
from pathlib import Path

import torch

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint, require_match
from grace.model.engine.decode_weights import PRECISIONS, Precision
from grace.server.engine.room import require_numbered_places, shortage
from grace.server.engine.serving_model import ServingModel, serving_model

__all__ = ["ServingPair", "load_pair", "serving_pair"]


@dataclass(frozen=True, eq=False)
class ServingPair:
    """Lives as long as anything refers to it: the server, and every batch bound to it."""

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


def load_pair(
    snapshots: Path,
    checkpoint: Path,
    generation: GenerationConfig,
    device: torch.device,
    precision: Precision,
    memo_bytes: int,
    match_threads: int,
) -> ServingPair:
    """The current snapshot of a folder, verified, and a checkpoint of the same SID space."""
    snapshot = load_snapshot(snapshots)
    # In float32 but for the features' tables, most of a large model: folding comes before rounding.
    loaded = load_checkpoint(checkpoint, device, features=PRECISIONS[precision])
    require_match(loaded.spec, snapshot, checkpoint)
    generation.require_steps(loaded.spec.sid_length)
    generation.require_vocabulary(loaded.spec.vocab_sizes)
    require_numbered_places(generation, loaded.spec.vocab_sizes, device)
    try:
        model = serving_model(loaded, checkpoint_id(checkpoint), precision, memo_bytes, generation)
    except Exception as error:  # too little memory has no type of its own
        fault = shortage(error)
        if fault is None:
            raise
        raise ConfigError(_too_little_memory(device, memo_bytes, generation, fault)) from None
    del loaded
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of the weights that generation and features have copied
    return serving_pair(snapshot, model, match_threads)


def _too_little_memory(
    device: torch.device, memo_bytes: int, generation: GenerationConfig, fault: str
) -> str:
    profiles = ", ".join(generation.profiles)
    return (
        f"device {device}: too little memory to prepare generation: {fault}; give a smaller "
        f"memo_bytes (now {memo_bytes}), a smaller generation.max_batch (now "
        f"{generation.max_batch}), fewer or narrower generation.profiles (now {profiles}), or take "
        "a larger machine"
    )


def serving_pair(snapshot: Snapshot, model: ServingModel, match_threads: int) -> ServingPair:
    return ServingPair(
        snapshot=snapshot,
        model=model,
        index=DecodeIndex.of(snapshot, model.device),
        users=UserEncoder(snapshot.schema, snapshot.set_values),
        matcher=ExactMatcher(snapshot, match_threads),
    )
