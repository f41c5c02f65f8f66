"""The training loop: the cross-entropy of the next event's SID, token by token."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils import deterministic

from grace.configs.arrays import Int64
from grace.configs.errors import ConfigError
from grace.model.checkpoints.checkpoint import CPU
from grace.model.definition.model import Model
from grace.model.train.interactions import HistoryBatches
from grace.model.train.recipe import TrainingConfig

Progress = Callable[[str, int, int, str], None]  # (what, done, total, details)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def fit(
    model: Model, batches: HistoryBatches, config: TrainingConfig, seed: int, progress: Progress
) -> tuple[float, ...]:
    """Train in place; return each step's loss. Equal seeds give equal weights on one machine."""
    device = model.decoder.device
    optimizer = torch.optim.AdamW(_groups(model, config.weight_decay), betas=(0.9, 0.98))
    losses: list[float] = []
    order = _endless(batches.log.examples(), config.batch, np.random.default_rng(seed))
    model.train()
    with reproducible(config.threads, device):
        for step, events in enumerate(islice(order, config.steps)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, config)
            context = model.user_context(batches.inputs(events).to(device))
            targets = batches.targets(events).to(device)
            loss = sequence_loss(model.decoder.sequence_logits(context, targets), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(model.parameters(), config.clip_norm, error_if_nonfinite=False)
            optimizer.step()
            if not math.isfinite(value := loss.item()):
                raise ConfigError(
                    f"training.learning_rate: with {config.learning_rate} the loss is {value} "
                    f"at step {step + 1}; choose a lower one"
                )
            losses.append(value)
            progress("train", step + 1, config.steps, f"loss {value:.3f}")
    model.eval()
    return tuple(losses)


def sequence_loss(logits: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Return the batch's mean -log p(SID).   logits [B, C_t] by position, targets int64 [B, L]"""
    losses = [functional.cross_entropy(x, targets[:, t]) for t, x in enumerate(logits)]
    return torch.stack(losses).sum()


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Return a rate that rises linearly to the configured one, then falls as half a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (1 + math.cos(math.pi * done)) / 2


@contextmanager
def reproducible(threads: int = 1, device: torch.device = CPU) -> Iterator[None]:
    """Make every run add numbers in the same order; at the end, restore the process's settings."""
    before = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_WORKSPACE)
    if device.type == "cuda" and workspace is None:
        os.environ[_WORKSPACE] = ":4096:8"  # without it, cuBLAS may add in another order
    # `use_deterministic_algorithms` does the same, but first imports torch's compiler for seconds.
    torch.set_deterministic_debug_mode("error")
    # Torch would fill new memory to expose reads before writes. That takes an eighth of a step.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.set_num_threads(before[1])
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the groups of weights: matrices decay, gains and biases do not."""
    decayed: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in model.named_parameters():
        (decayed if weight.ndim > 1 and "bias" not in name else others).append(weight)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def _endless(examples: Int64, size: int, rng: np.random.Generator) -> Iterator[Int64]:
    """Yield batches from one shuffle after another; a batch may span two shuffles."""
    waiting = examples[:0]
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(examples)])
        yield waiting[:size]
        waiting = waiting[size:]
