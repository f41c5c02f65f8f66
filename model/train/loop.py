"""The training loop: the cross-entropy of the next event's SID, token by token."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils import deterministic

from grace.configs.errors import ConfigError
from grace.model.checkpoints.checkpoint import CPU
from grace.model.definition.model import Model
from grace.model.train.interactions import HistoryBatches
from grace.model.train.recipe import TrainingConfig
from grace.model.train.saved_state import SavedState

Int64 = npt.NDArray[np.int64]
Progress = Callable[[str, int, int, str], None]  # (what, done, total, details)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True)
class Watch:
    """The outputs of a training while it runs.

    `sample` measures the model in nine places and returns a text. `state` is saved every
    `save_seconds`, so an interruption loses at most that.
    """

    progress: Progress
    sample: Callable[[Model], str] = lambda _: ""
    state: SavedState | None = None
    save_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """The loss of every step, and the step that this run began with."""

    losses: tuple[float, ...]
    first_step: int


def fit(
    model: Model, batches: HistoryBatches, config: TrainingConfig, seed: int, watch: Watch
) -> Fitted:
    """Train the model in place on its device.

    Equal seeds give equal weights on one machine, also if a training is interrupted and goes on
    from its saved state. Another processor may add in another order.
    """
    device = model.decoder.start.device
    optimizer = torch.optim.AdamW(_groups(model, config.weight_decay), betas=(0.9, 0.98))
    losses = [] if watch.state is None else watch.state.restore(model, optimizer)
    order = _endless(batches.log.examples(), config.batch, np.random.default_rng(seed))
    first = len(losses)
    sampled, saved_at = "", time.monotonic()
    model.train()
    with reproducible(config.threads, device):
        for step, events in enumerate(islice(order, config.steps)):
            if step < first:
                continue
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
            if _samples_at(step + 1, config.steps):
                sampled = watch.sample(model.eval())
                model.train()
            watch.progress("train", step + 1, config.steps, f"loss {value:.3f}{sampled}")
            last = step + 1 == config.steps
            if watch.state and (last or time.monotonic() - saved_at >= watch.save_seconds):
                watch.state.save(model, optimizer, losses)
                saved_at = time.monotonic()
    model.eval()
    return Fitted(tuple(losses), first)


def _samples_at(step: int, steps: int) -> bool:
    """Return whether a tenth of the steps ends at this one, except the last tenth."""
    return step < steps and step * 10 // steps > (step - 1) * 10 // steps


def sequence_loss(logits: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Return -log p(SID), a sum of cross-entropies over the positions; the batch's mean.

    logits per position [B, C_t], targets int64 [B, L]
    """
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
    """Make every run add numbers in the same order.

    The settings affect the whole process, so the end of the context restores them.
    """
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
