"""`grace train`: from a folder of data and a recipe to a checkpoint and its recall.

A recipe is a YAML file with three sections:

model:      like model.yaml; sid_space and vocab_sizes may be left out, then they are the data's
training:   {steps: 1500, batch: 256, ...}
generation: {max_batch: 16, profiles: {full: {beams: [1, 64, 64, 64], num_sids: 64}}}
"""

import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from grace.configs.errors import ConfigError, InputError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.sections import load_section, read_sections
from grace.configs.training import TrainingConfig
from grace.index.builder import BuildSpec, build
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.model.checkpoints.checkpoint import checkpoint_id, save_checkpoint
from grace.model.checkpoints.init import random_model
from grace.model.definition.spec import ModelSpec, parse_spec
from grace.model.train.evaluate import Skew, evaluate, skew_of
from grace.model.train.interactions import HistoryBatches, history_input, read_interactions
from grace.model.train.loop import Progress, fit

ADS_FILE = "ads.parquet"
TARGETING_FILE = "targeting.yaml"
LOG_FILE = "interactions.parquet"

_SECTIONS = ("model", "training", "generation")
_FINAL_SHARE = 0.05  # the final loss is the mean over this share of the steps, the last ones


@dataclass(frozen=True, slots=True)
class Recipe:
    model: ModelSpec
    training: TrainingConfig
    generation: GenerationConfig


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The input and output of a run. `steps` and `epochs` override the recipe's length."""

    data: Path
    out: Path
    config: Path
    seed: int = 1
    steps: int | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What a run did. `recall` is by recommender, then by cut-off: see `evaluate`."""

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
        """The mean loss of the last steps."""
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
    """Train a model, write its checkpoint, and evaluate the checkpoint as read back from disk."""
    if run.out.exists() and (not run.out.is_dir() or any(run.out.iterdir())):
        raise InputError(f"--out {run.out} is already there; choose a new folder, or remove it")
    try:
        run.out.parent.mkdir(parents=True, exist_ok=True)
        # A temporary folder next to `out`, so that a run that fails leaves no `out`.
        made = tempfile.TemporaryDirectory(prefix=".grace-train-", dir=run.out.parent)
    except OSError as error:
        raise InputError(f"--out {run.out}: cannot be written: {error.strerror}") from None
    with made as folder:
        partial = Path(folder) / "checkpoint"
        report = _train(run, partial, progress)
        partial.rename(run.out)
    return report


def _train(run: TrainingRun, out: Path, progress: Progress) -> TrainingReport:
    catalogue = catalogue_of(run.data)
    recipe = load_recipe(run.config, catalogue)
    history = history_input(recipe.model)
    log = read_interactions(run.data / LOG_FILE, catalogue.trie, tuple(history.side))
    batches = HistoryBatches(log, history)
    config = _with_steps(recipe.training, run, len(log.examples()))
    model = random_model(recipe.model, run.seed)
    started = time.perf_counter()
    losses = fit(model, batches, config, run.seed, progress)
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


def load_recipe(path: Path, catalogue: Snapshot) -> Recipe:
    """Read and check a recipe for the SIDs of a catalogue."""
    sections = read_sections(path, _SECTIONS)
    facts: dict[str, Any] = {
        "sid_space": catalogue.facts.sid_space,
        "vocab_sizes": list(catalogue.trie.vocab_sizes),
    }
    model = {**facts, **sections["model"]}
    for name, fact in facts.items():
        if model[name] != fact:
            raise ConfigError(
                f"{path}: model.{name} is {model[name]}, the data's is {fact}; leave it out, or "
                "train on other data"
            )
    spec = parse_spec(model, f"{path}: model")
    generation = load_section(GenerationConfig, sections["generation"], f"{path}: generation")
    try:
        generation.require_steps(spec.sid_length)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    training = load_section(TrainingConfig, sections["training"], f"{path}: training")
    return Recipe(spec, training, generation)


def catalogue_of(data: Path) -> Snapshot:
    """Build a snapshot of the folder's ads without matchers: training ignores targeting."""
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
    """Return the configuration with the run's length. A warm-up takes at most a tenth of it."""
    steps = run.steps
    if run.epochs is not None:
        steps = math.ceil(run.epochs * examples / config.batch)
    if steps is None:
        return config
    return replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 10))


def _rounded(values: dict[Any, float]) -> dict[Any, float]:
    return {name: round(value, 4) for name, value in values.items()}
