"""Random weights, to start training from and to measure models of any shape.

A matrix keeps the scale of its input: its standard deviation is 1 / sqrt(columns). If attention
scores are not scaled, the weights of the queries contain the factor 1 / sqrt(d_head), as T5's do.
Gains are 1. Decoder heads are twice as large: logits then have a standard deviation near 2, and a
beam search has a choice. A tensor's values depend on the seed, its name and its shape only.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch
import xxhash
from torch import Tensor

from grace.configs.generation import GenerationConfig
from grace.configs.regular_files import require_new
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.model.checkpoints.checkpoint import empty_model, save_checkpoint
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.model import AnyModel, CausalModel, Model
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_spec import EncoderDecoderSpec

LOGIT_STD = 2.0
BIAS_STD = 0.5

_VECTORS = ("queries", "start", "summaries", "tokens")
"""Learned vectors that enter the residual stream, like embeddings."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model and its beam profiles, as in configs/paper.yaml."""

    model: CausalModelSpec | EncoderDecoderSpec
    generation: GenerationConfig


def load_model_config(path: Path) -> ModelConfig:
    return load_section(ModelConfig, read_yaml(path), str(path))


@overload
def random_model(spec: EncoderDecoderSpec, seed: int, dtype: torch.dtype = ...) -> Model: ...
@overload
def random_model(spec: CausalModelSpec, seed: int, dtype: torch.dtype = ...) -> CausalModel: ...
@overload
def random_model(spec: ModelSpec, seed: int, dtype: torch.dtype = ...) -> AnyModel: ...
def random_model(spec: ModelSpec, seed: int, dtype: torch.dtype = torch.float32) -> AnyModel:
    """Return a model with random weights on the CPU, ready to train or run."""
    model = empty_model(spec)
    state = {
        name: _random_weight(spec, seed, name, tuple(weight.shape)).to(dtype)
        for name, weight in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    return model


def write_random(spec: ModelSpec, folder: Path, seed: int, dtype: torch.dtype) -> str:
    """Write `random_model`'s checkpoint. Return its id."""
    require_new(folder)  # drawing a large model takes minutes
    return save_checkpoint(random_model(spec, seed, dtype), folder)


def _random_weight(spec: ModelSpec, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    if name.endswith("norm"):
        return torch.ones(shape)
    rng = np.random.default_rng([seed, xxhash.xxh3_64_intdigest(name.encode())])
    values = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    return values.mul_(_scale(spec, name, shape))


def _scale(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> float | Tensor:
    """Return the standard deviation of a tensor's values, or of each of its rows."""
    stage, kind = name.partition(".")[0], name.rpartition(".")[2]
    is_tied = isinstance(spec, CausalModelSpec) and spec.causal.tied_head
    if name == "decoder.head" or (is_tied and name == "decoder.embed"):
        return LOGIT_STD / math.sqrt(shape[-1])
    if kind in _VECTORS or kind.startswith("embed"):
        return 1.0
    if kind.endswith("bias"):
        return BIAS_STD
    scale = 1.0 / math.sqrt(shape[-1])
    if kind not in ("qkv", "cross_q") or not isinstance(spec, EncoderDecoderSpec):
        return scale
    attention = spec.decoder if stage == "decoder" else spec.encoder.t5
    if attention is None or attention.scale_scores:
        return scale
    rows = torch.full((shape[0], 1), scale)
    rows[: attention.heads * attention.d_head] /= math.sqrt(attention.d_head)
    return rows
