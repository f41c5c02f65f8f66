"""A folder to train on in seconds, and what a run calls."""

from pathlib import Path
from typing import Any

from grace.catalogues.synth import CatalogueSpec, write_folder
from grace.configs.options import TrainingRun

SMALL_RECIPE = """
model:
  inputs: {clicks: {kind: sequence, max_length: 5}}
  encoder:
    t5: {layers: 1, d_model: 16, heads: 2, d_head: 8, d_ff: 24, history: clicks,
         num_tokens: 89, token_offsets: [1, 65, 73, 81], eos_token: 0, scale_scores: true}
  decoder: {layers: 1, d_model: 16, heads: 2, d_head: 8, d_ff: 24, scale_scores: true}
training: {steps: 60, batch: 63, learning_rate: 0.01, warmup_steps: 6}
generation:
  max_batch: 4
  profiles: {full: {beams: [1, 9, 9, 9], num_sids: 9}}
"""


def write_small_data(folder: Path) -> None:
    """Write 111 SIDs over 64 x 8 x 8 x 8, and the interactions of 63 users."""
    spec = CatalogueSpec("small-1", 111, 3, (64, 8, 8, 8), seed=5, log_users=63)
    write_folder(spec, folder, force=True)


def small_run(data: Path, out: Path, **others: Any) -> TrainingRun:
    """Return a run on the CPU, by the recipe of the data's folder."""
    given = {"config": data / "recipe.yaml", "device": "cpu", **others}
    return TrainingRun(data=data, out=out, **given)
