"""`grace train`: from a data folder and a recipe to a checkpoint and its recall."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace.configs.arrays import AnyArray
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.configs.options import TrainingRun
from grace.configs.regular_files import require_new
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.kernels import DecodeIndex, device_named
from grace.model.checkpoints import checkpoint as checkpoints
from grace.model.checkpoints.init import random_model
from grace.model.definition.model import Model
from grace.model.train.evaluate import CUTOFFS, Search, ranked, rounded, validation_score
from grace.model.train.interactions import HistoryBatches, history_input
from grace.model.train.log_reader import ReadLog, catalogue_of, read_log
from grace.model.train.loop import Progress, fit, reproducible
from grace.model.train.recipe import RECIPE_FILE, Recipe, TrainingConfig, read_recipe, recipe_for
from grace.model.train.unfinished import Unfinished

_STATE = 1  # the version of the state that an unfinished training keeps

MOST_USERS = 2000  # held-out users whose newest event measures the checkpoint

_FINAL_SHARE = 0.05  # the final loss is the mean over this share of the steps, the last ones


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The result of a run. `recall` is by recommender, then by cut-off: see `evaluate`."""

    checkpoint: str
    sid_space: str
    sids: int
    refused_ads: int
    weights: int
    training_users: int
    training_events: int
    unknown_events: int  # left out
    held_out_users: int
    measured_users: int
    config: TrainingConfig
    seed: int
    device: str
    losses: tuple[float, ...]
    train_seconds: float
    beams: BeamProfile
    recall: dict[str, dict[int, float]]

    @property
    def final_loss(self) -> float:
        last = max(1, round(_FINAL_SHARE * len(self.losses)))
        return float(np.mean(self.losses[-last:]))

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        losses = values.pop("losses")
        values["loss"] = {"first": round(losses[0], 4), "final": round(self.final_loss, 4)}
        values["train_seconds"] = round(self.train_seconds, 1)
        values["recall"] = rounded(self.recall)
        return values


def train_model(
    run: TrainingRun, progress: Progress, note: Callable[[str], None] = lambda _: None
) -> TrainingReport:
    """Train a model, write its checkpoint, and evaluate the checkpoint as read back from disk.

    `note` receives a line before each part that shows no progress.
    """
    require_new(run.out)
    run = replace(run, out=Path(os.path.realpath(run.out)))  # a link stays one
    device = device_named(run.device, "--device")
    try:
        run.out.parent.mkdir(parents=True, exist_ok=True)
        # A temporary folder next to `out`, so that a run that fails leaves no `out`.
        made = tempfile.TemporaryDirectory(prefix=".grace-train-", dir=run.out.parent)
    except OSError as error:
        raise InputError(f"--out {run.out}: cannot be written: {error.strerror}") from None
    with made as folder:
        made_here = Path(folder) / "checkpoint"
        note(f"reading the ads and the log of {run.data}")
        prepared = _prepare(run, device)
        note(prepared.plan())
        unfinished = Unfinished.of(run, prepared.facts(run), note)
        report = _train(run, prepared, made_here, progress, unfinished)
        made_here.rename(run.out)
    unfinished.remove()
    return report


@dataclass(frozen=True, slots=True)
class _Prepared:
    catalogue: Snapshot
    read: ReadLog
    recipe: Recipe
    batches: HistoryBatches
    device: torch.device
    model: Model

    def facts(self, run: TrainingRun) -> Iterator[str | AnyArray]:
        """Yield all that decides the weights."""
        log = self.batches.log
        yield repr((_STATE, torch.__version__, self.recipe, run.seed, self.device.type))
        yield checkpoints.checkpoint_id(run.start) if run.start else ""
        yield from (log.leaf_sids, log.offsets, log.leaves, log.times_ms)
        yield from (log.examples(), log.validation, *log.side.values())

    def plan(self) -> str:
        """Return one line that says what the run will do."""
        config, examples = self.recipe.training, len(self.batches.log.examples())
        return (
            f"{self.catalogue.trie.num_leaves:,} SIDs, {examples:,} events: {config.steps:,} steps "
            f"of {config.batch} events on {self.device.type}, "
            f"{config.steps * config.batch / examples:.1f} passes over the log"
        )


def _prepare(run: TrainingRun, device: torch.device) -> _Prepared:
    written, model = read_recipe(run.config), None
    if run.start is not None:
        model = checkpoints.load_encoder_decoder(run.start).float().requires_grad_()
        written = written.continuing(run.start, model.spec)
    folder = read_data_folder(run.data)
    catalogue = catalogue_of(folder, run)
    if run.start is not None and model is not None:
        checkpoints.require_match(model.spec, catalogue, run.start)
    validation = bool(written.sections["training"].get("validate_every"))
    side = written.side_columns
    read = read_log(folder, catalogue, side, run.max_unknown, validation=validation)
    log = read.interactions
    if validation and not len(log.validation):
        raise InputError(
            f"{run.data}: the log has no event for training.validate_every: it needs a user with "
            "two events in the split `validation`, or without splits one with three; or set "
            "validate_every to 0"
        )
    recipe = recipe_for(written, catalogue, log, device.type)
    if run.steps is not None:  # a warm-up takes at most a tenth of a run
        warmup_steps = min(recipe.training.warmup_steps, run.steps // 10)
        training = replace(recipe.training, steps=run.steps, warmup_steps=warmup_steps)
        recipe = replace(recipe, training=training)
    batches = HistoryBatches(log, history_input(recipe.model), device)
    model = (model or random_model(recipe.model, run.seed)).to(device)
    return _Prepared(catalogue, read, recipe, batches, device, model)


def _train(
    run: TrainingRun, prepared: _Prepared, out: Path, progress: Progress, unfinished: Unfinished
) -> TrainingReport:
    recipe, batches, catalogue = prepared.recipe, prepared.batches, prepared.catalogue
    device, model = prepared.device, prepared.model
    log, profile = batches.log, recipe.generation.profiles[recipe.generation.default_profile]
    index = DecodeIndex.of(catalogue, device)
    watched = Search(model, index.without_matchers(), profile)
    validation = log.validation_events(MOST_USERS)
    score = partial(validation_score, watched, batches, validation)
    started = time.perf_counter()
    losses = fit(model, batches, recipe.training, run.seed, progress, score, unfinished)
    seconds = time.perf_counter() - started
    checkpoints.save_checkpoint(model, out)
    checkpoints.write_yaml(out / RECIPE_FILE, recipe.to_json())
    events = log.last_events(MOST_USERS)
    search = Search(checkpoints.load_encoder_decoder(out, device), index, profile)
    with reproducible(device=device):
        ranks = ranked(search, batches, events, progress)
    return TrainingReport(
        checkpoint=checkpoints.checkpoint_id(out),
        sid_space=recipe.model.sid_space,
        sids=catalogue.trie.num_leaves,
        refused_ads=catalogue.facts.rejects,
        weights=sum(weight.numel() for weight in model.parameters()),
        training_users=log.training_users(),
        training_events=len(log.examples()),
        unknown_events=prepared.read.left_out,
        held_out_users=len(log.last_events()),
        measured_users=len(events),
        config=recipe.training,
        seed=run.seed,
        device=device.type,
        losses=losses,
        train_seconds=seconds,
        beams=profile,
        recall={
            name: each.recall for name, each in ranks.qualities(CUTOFFS, profile.num_sids).items()
        },
    )
