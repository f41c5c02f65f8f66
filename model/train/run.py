"""From a folder of data to a checkpoint, and how well it retrieves: what `grace train` does."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.configs.training import TrainingConfig
from grace.index.builder import BuildSpec, build
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.kernels import DecodeIndex
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint, save_checkpoint
from grace.model.checkpoints.init import random_model
from grace.model.train.batches import HistoryBatches, history_input
from grace.model.train.evaluate import (
    CUTOFFS,
    Skew,
    follower_ranks,
    model_ranks,
    popularity_ranks,
    random_recall,
    recall,
    skew_of,
)
from grace.model.train.interactions import Interactions, read_interactions
from grace.model.train.loop import fit
from grace.model.train.recipe import load_recipe
from grace.model.train.reproducible import reproducible

__all__ = [
    "ADS_FILE",
    "LOG_FILE",
    "TARGETING_FILE",
    "TrainingReport",
    "TrainingRun",
    "catalogue_of",
    "evaluate",
    "train_model",
]

ADS_FILE = "ads.parquet"
TARGETING_FILE = "targeting.yaml"
LOG_FILE = "interactions.parquet"

Progress = Callable[[str, int, int, str], None]  # (what, done, in all, the latest of it)

_FINAL_SHARE = 0.05  # of the steps, whose mean loss is the final one


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What to train and where to put it. `steps` and `epochs` override the configuration's."""

    data: Path
    out: Path
    config: Path
    seed: int = 1
    steps: int | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """`recall` by recommender, then by cut-off; model.train.evaluate says what each one shows."""

    checkpoint: str
    sid_space: str
    sids: int
    weights: int
    training_users: int
    training_events: int
    held_out_users: int
    popularity_skew: Skew
    config: TrainingConfig
    seed: int
    losses: tuple[float, ...]
    train_seconds: float
    beams: BeamProfile
    recall: dict[str, dict[int, float]]

    @property
    def final_loss(self) -> float:
        """Mean over the last steps."""
        last = max(1, round(_FINAL_SHARE * len(self.losses)))
        return float(np.mean(self.losses[-last:]))

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        losses = values.pop("losses")
        values["loss"] = {"first": round(losses[0], 4), "final": round(self.final_loss, 4)}
        values["train_seconds"] = round(self.train_seconds, 1)
        values["popularity_skew"] = _rounded(values["popularity_skew"])
        values["recall"] = {name: _rounded(row) for name, row in self.recall.items()}
        return values


def train_model(run: TrainingRun, progress: Progress) -> TrainingReport:
    """Writes the checkpoint, and judges it as it is on disk."""
    if run.out.exists() and (not run.out.is_dir() or any(run.out.iterdir())):
        raise InputError(f"--out {run.out} is already there; choose a new folder, or remove it")
    with _partial_folder(run.out) as partial:
        report = _train(run, partial, progress)
        partial.rename(run.out)
    return report


@contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, so that a run that ends early leaves nothing under its name."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".grace-train-", dir=out.parent)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}") from None
    with made as folder:
        yield Path(folder) / "checkpoint"


def _train(run: TrainingRun, out: Path, progress: Progress) -> TrainingReport:
    catalogue = catalogue_of(run.data)
    recipe = load_recipe(run.config, catalogue)
    history = history_input(recipe.model)
    log = read_interactions(run.data / LOG_FILE, catalogue.trie, tuple(history.side))
    batches = HistoryBatches(log, history)
    config = _with_steps(recipe.training, run, len(log.examples()))
    model = random_model(recipe.model, run.seed)
    started = time.perf_counter()
    losses = fit(
        model,
        batches,
        config,
        run.seed,
        lambda done, total, loss: progress("train", done, total, f"loss {loss:.3f}"),
    )
    seconds = time.perf_counter() - started
    save_checkpoint(model, out)
    profile = recipe.generation.profiles[recipe.generation.default_profile]
    counts = log.leaf_counts(catalogue.trie.num_leaves)
    return TrainingReport(
        checkpoint=checkpoint_id(out),
        sid_space=recipe.model.sid_space,
        sids=catalogue.trie.num_leaves,
        weights=sum(weight.numel() for weight in model.parameters()),
        training_users=int((~log.held_out).sum()),
        training_events=int(counts.sum()),
        held_out_users=len(log.last_events()),
        popularity_skew=skew_of(counts),
        config=config,
        seed=run.seed,
        losses=tuple(losses),
        train_seconds=seconds,
        beams=profile,
        recall=evaluate(out, catalogue, log, profile, progress),
    )


def evaluate(
    checkpoint: Path,
    catalogue: Snapshot,
    log: Interactions,
    profile: BeamProfile,
    progress: Progress,
) -> dict[str, dict[int, float]]:
    """Recall of the newest event of held-out users, by recommender and cut-off."""
    model = load_checkpoint(checkpoint)
    batches = HistoryBatches(log, history_input(model.spec))
    events = log.last_events()
    index = DecodeIndex.of(catalogue, torch.device("cpu"))
    with reproducible():
        generated = model_ranks(
            model,
            index,
            batches,
            events,
            profile,
            lambda done, total: progress("evaluate", done, total, ""),
        )
    counts = log.leaf_counts(catalogue.trie.num_leaves)
    within = tuple(k for k in CUTOFFS if k <= profile.num_sids)
    return {
        "model": recall(generated, within),
        "followers": recall(follower_ranks(log, events)),
        "popularity": recall(popularity_ranks(counts, log.leaves[events])),
        "random": random_recall(catalogue.trie.num_leaves),
    }


def catalogue_of(data: Path) -> Snapshot:
    """The SIDs of a folder's ads, as a snapshot without matchers: whom ads are for does not matter
    to what users do next."""
    with tempfile.TemporaryDirectory(prefix="grace-train-") as root:
        spec = BuildSpec(
            ads=(data / ADS_FILE,),
            targeting=data / TARGETING_FILE,
            root=Path(root),
            mode=MatcherMode.CD,
        )
        build(spec, lambda *_: None)
        return load_snapshot(spec.root)


def _with_steps(config: TrainingConfig, run: TrainingRun, examples: int) -> TrainingConfig:
    """The configuration with the run's length; the warm-up keeps its share."""
    steps = run.steps
    if run.epochs is not None:
        steps = math.ceil(run.epochs * examples / config.batch)
    if steps is None:
        return config
    values = asdict(config)
    values["warmup_steps"] = min(config.warmup_steps, steps // 10)
    return TrainingConfig(**{**values, "steps": steps})


def _rounded(values: dict[Any, float]) -> dict[Any, float]:
    return {name: round(value, 4) for name, value in values.items()}
