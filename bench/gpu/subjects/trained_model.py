"""Train a model over a catalogue of more than 100,000 SIDs, in two minutes.

People walk through a synthetic catalogue (catalogues/synth/browsing.py): the next thing they look
at is often of the same product line or brand. A T5 model learns this from their histories, in TF32
on a GPU. Held-out people show how well, compared with recall by popularity and by chance.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from grace.catalogues.synth import CatalogueSpec, make_catalogue, write_folder
from grace.catalogues.synth.users import make_users
from grace.configs.eligibility import Eligibility, MatcherMode
from grace.configs.sections import load_section
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.users.user_rows import UserAttributes
from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import ModelInputs
from grace.model.definition.model import Model
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.log_reader import catalogue_of, read_log
from grace.model.train.loop import fit
from grace.model.train.recipe import TrainingConfig

_EVENTS = 8  # of a history, each four tokens


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A catalogue with union matchers, its log, people's attributes, and what is trained on it."""

    snapshot: Snapshot
    log: Interactions
    users: tuple[UserAttributes, ...]
    batches: HistoryBatches
    model: EncoderDecoderSpec
    training: TrainingConfig

    def inputs(self, events: slice, device: torch.device) -> ModelInputs:
        """Return the histories of held-out people before their newest event."""
        return self.batches.inputs(self.log.last_events()[events]).to(device)


def prepare(tiny: bool, users: int) -> TrainingData:
    """`users` is the number of the catalogue's users to generate for."""
    catalogue = CatalogueSpec("overlap", 120_000, users, (512,) * 4, 1, log_users=120_000)
    model = _model_spec(catalogue, layers=4, encoder_layers=2, d_model=512, heads=8, d_ff=1024)
    training = TrainingConfig(3500, 1024, 1e-3, warmup_steps=200)
    if tiny:
        catalogue = CatalogueSpec("overlap-tiny", 300, users, (64, 16, 16, 16), 1, log_users=200)
        model = _model_spec(catalogue, layers=2, encoder_layers=1, d_model=128, heads=2, d_ff=128)
        training = TrainingConfig(40, 63, 5e-3, warmup_steps=4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(catalogue, folder)
        data = read_data_folder(folder)
        snapshot = catalogue_of(data, eligibility=Eligibility(MatcherMode.UNION))
        log = read_log(data, snapshot).interactions
    people = tuple(user.attributes for user in make_users(make_catalogue(catalogue)))
    batches = HistoryBatches(log, history_input(model))
    return TrainingData(snapshot, log, people, batches, model, training)


def train(data: TrainingData, device: torch.device) -> tuple[Model, dict[str, Any]]:
    """Return the model on the device in float32, and how its training went."""
    config, examples = data.training, len(data.log.examples())
    model = random_model(data.model, seed=1).to(device)
    begin = perf_counter()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        losses = fit(model, data.batches, config, 1, lambda *_: None)
    finally:
        torch.set_float32_matmul_precision(before)
    last = max(1, len(losses) // 20)
    return model.requires_grad_(False), {
        "sids": data.snapshot.trie.num_leaves,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "events": examples,
        "steps": config.steps,
        "batch": config.batch,
        "train_seconds": round(perf_counter() - begin, 1),
        "loss_first": round(losses[0], 3),
        "loss_final": round(sum(losses[-last:]) / last, 3),
    }


def _model_spec(
    catalogue: CatalogueSpec, layers: int, encoder_layers: int, d_model: int, heads: int, d_ff: int
) -> EncoderDecoderSpec:
    vocab_sizes = catalogue.vocab_sizes
    shared = {"d_model": d_model, "heads": heads, "d_head": d_model // heads, "d_ff": d_ff}
    offsets = np.cumsum([0, *vocab_sizes[:-1]]).tolist()
    encoder = {
        **shared,
        "layers": encoder_layers,
        "history": "events",
        "num_tokens": sum(vocab_sizes),
        "token_offsets": offsets,
        "scale_scores": True,
    }
    values = {
        "sid_space": catalogue.sid_space,
        "vocab_sizes": list(vocab_sizes),
        "inputs": {"events": {"kind": "sequence", "max_length": _EVENTS}},
        "encoder": {"t5": encoder},
        "decoder": {**shared, "layers": layers, "scale_scores": True},
    }
    return load_section(EncoderDecoderSpec, values, "the trained model")
