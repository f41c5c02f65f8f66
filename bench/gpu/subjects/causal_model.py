"""Causal models with random weights, catalogues of random SIDs, and random prompts.

The device draws the weights: a CPU takes minutes. Logits have a standard deviation near 2.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grace.bench.gpu.subjects.catalogue import SEED
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.kernels import DecodeIndex, UserTensors
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.init import load_model_config
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.model import CausalModel
from grace.model.engine.feature_stage import PlacedPrompts
from grace.model.engine.generation import SearchTask

BATCHES_OF = {
    "1.7B": (1, 4, 8), "0.6B": (1, 4, 8, 16, 32), "small": (1, 3),
    "sid-gr-256": (1, 16), "sid-gr-2048": (1, 16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes and the searches that it is measured with."""

    name: str
    spec: CausalModelSpec
    config: GenerationConfig
    batches: tuple[int, ...]
    sids: int = 3_000_000

    @staticmethod
    def of(name: str) -> "Shape":
        (file,) = Path(__file__).parent.glob(f"*{name}.yaml")
        loaded = load_model_config(file)
        assert isinstance(loaded.model, CausalModelSpec)
        return Shape(name, loaded.model, loaded.generation, BATCHES_OF[name])

    @property
    def profile(self) -> BeamProfile:
        return self.config.profiles["full"]

    def index(self, device: torch.device) -> DecodeIndex:
        return random_index(self.spec.vocab_sizes, self.sids, device)

    def task(self, batch: int, index: DecodeIndex) -> SearchTask:
        """Return a search for users without attributes."""
        bitmask = torch.zeros((batch, 1), dtype=torch.int64, device=index.csr_tokens.device)
        return SearchTask(UserTensors.asking(bitmask), index, self.profile)


def random_causal(spec: CausalModelSpec, device: torch.device) -> CausalModel:
    model = empty_model(spec)
    assert isinstance(model, CausalModel)
    generator = torch.Generator(device).manual_seed(SEED)
    state: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        drawn = torch.ones(weight.shape, device=device)
        if not name.endswith("norm"):
            deviation = (2.0 if name.endswith("embed") else 1.0) / math.sqrt(weight.shape[-1])
            drawn.normal_(0.0, deviation, generator=generator)
        state[name] = drawn
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def random_index(vocab_sizes: tuple[int, ...], sids: int, device: torch.device) -> DecodeIndex:
    """Return a catalogue of about `sids` SIDs, each eligible for every user."""
    rng = np.random.default_rng(SEED)
    keys = np.zeros(sids, dtype=np.int64)
    for size in vocab_sizes:
        keys = keys * size + rng.integers(size, size=sids)
    keys = np.unique(keys)
    tokens, fan_outs = [], []
    for size in reversed(vocab_sizes):
        tokens.append((keys % size).astype(np.int32))
        keys, children = np.unique(keys // size, return_counts=True)
        fan_outs.append(children)
    offsets = np.concatenate([[0], *fan_outs[::-1]]).cumsum()
    return DecodeIndex(
        vocab_sizes=vocab_sizes,
        first_leaf=len(offsets) - 1,
        node_offsets=torch.from_numpy(offsets.astype(np.int32)).to(device),
        csr_tokens=torch.from_numpy(np.concatenate(tokens[::-1])).to(device),
    )


def random_prompts(
    spec: CausalModelSpec, batch: int, kind: str, seed: int, device: torch.device
) -> PlacedPrompts:
    """Return prompts of `longest` or of `uniform` lengths, from 1 to the longest."""
    rng, longest = np.random.default_rng(seed), spec.prompt.max_tokens
    lengths = rng.integers(1 if kind == "uniform" else longest, longest + 1, size=batch)
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()])).int().to(device)
    total, generator = int(lengths.sum()), torch.Generator(device).manual_seed(seed)
    values = torch.randint(spec.causal.num_tokens, (total,), generator=generator, device=device)
    return PlacedPrompts(offsets, values.int(), total)
