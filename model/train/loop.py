"""The training loop: the cross-entropy of the next event's SID, token by token."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.utils import deterministic

from grace.configs.arrays import Int64
from grace.configs.errors import ConfigError
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, TRAINING_ENCODER
from grace.model.checkpoints.checkpoint import CPU
from grace.model.definition.model import Model
from grace.model.train.interactions import HistoryBatches
from grace.model.train.recipe import TrainingConfig
from grace.model.train.unfinished import Unfinished
from grace.native.build import LEAST_CAPABILITY

Progress = Callable[[str, int, int, str], None]  # (what, done, total, details)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

# On a GPU, the first steps run without a graph: they create the optimiser's state.
_STEPS_BEFORE_GRAPH = 3
_STEPS_BETWEEN_LOOKS = 50  # a look reads the loss, and waits for the GPU
_SECONDS_BETWEEN_STATES = 300
_SORTED_BATCHES = 8  # drawn together, then sorted by the length of the history


def fit(
    model: Model,
    batches: HistoryBatches,
    config: TrainingConfig,
    seed: int,
    progress: Progress,
    score: Callable[[], float] = lambda: 0.0,
    unfinished: Unfinished | None = None,
) -> tuple[float, ...]:
    """Train in place; return each step's loss. Equal seeds give equal weights on one machine.

    With `validate_every`, the model ends with the weights of the highest score. If `progress`
    raises a KeyboardInterrupt, `unfinished` keeps the state, and the next call continues from it.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.dropout
    device = batches.device
    with reproducible(config.threads, device, seed, products="high"):
        training = _Training(model, batches, config, score)
        if unfinished is not None and (state := unfinished.read()) is not None:
            training.restore(state)
        order = _endless(batches, config.batch, np.random.default_rng(seed))
        kept = time.monotonic()
        for events in islice(order, training.done, config.steps):
            if training.ended:
                break
            training.step(events)
            try:
                progress("train", training.done, config.steps, str(training))
            except KeyboardInterrupt:  # elsewhere, it may come in the middle of a step
                if unfinished is not None:
                    unfinished.stop(training.state())
                raise
            late = time.monotonic() > kept + _SECONDS_BETWEEN_STATES
            if unfinished is not None and (late or training.ended):
                unfinished.write(training.state())
                kept = time.monotonic()
        return training.finish()


class _Training:
    """The state of a training, and `step`, which advances it.

    On a GPU, a CUDA graph runs a whole step, from the indices of the events on. Each width of the
    histories needs another graph.
    """

    def __init__(
        self,
        model: Model,
        batches: HistoryBatches,
        config: TrainingConfig,
        score: Callable[[], float],
    ) -> None:
        device = batches.device
        self.done = 0
        self._model, self._batches, self._config = model, batches, config
        self._cuda = device.type == "cuda"
        # Older GPUs do not have it.
        self._bf16 = self._cuda and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY
        self._encoder = TRAINING_ENCODER if self._cuda else PLAIN_ENCODER
        self._best = _Best(model, score)
        self._losses = torch.empty(config.steps, device=device)
        self._latest = math.nan
        self._rate = torch.zeros((), device=device)
        self._events = torch.zeros(config.batch, dtype=torch.int64, device=device)
        groups = _groups(model, config.weight_decay)
        self._optimizer = torch.optim.AdamW(
            groups, self._rate, (0.9, 0.98), fused=True, capturable=self._cuda
        )
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._recorded_from = _STEPS_BEFORE_GRAPH

    def __str__(self) -> str:
        return f"loss {self._latest:.3f}{self._best}"

    def step(self, events: Int64) -> None:
        self._events.copy_(torch.from_numpy(events))
        self._rate.fill_(learning_rate_at(self.done, self._config))
        self._losses[self.done] = self._loss(self._batches.width(events))
        self.done += 1
        validates = self._config.validate_every and self.done % self._config.validate_every == 0
        if not self._cuda or validates or self.done % _STEPS_BETWEEN_LOOKS == 1:
            self._look()
        if validates:
            self._best.validate()

    @property
    def ended(self) -> bool:
        no_longer_better = self._best.state["worse"] >= self._config.patience
        return self.done == self._config.steps or bool(no_longer_better)

    def finish(self) -> tuple[float, ...]:
        self._look()
        self._best.choose()
        return tuple(self._losses[: self.done].tolist())

    def state(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "losses": self._losses,
            "weights": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "best": self._best.state,
            "random": (torch.cuda if self._cuda else torch).get_rng_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]
        self._losses.copy_(state["losses"])
        self._model.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
        self._best.state = state["best"]
        self._recorded_from += self.done
        (torch.cuda if self._cuda else torch).set_rng_state(state["random"])

    def _look(self) -> None:
        """Read the latest loss, and require that it is finite, like all before it."""
        losses = self._losses[: self.done]
        self._latest = losses[-1].item()
        if not math.isfinite(self._latest):
            first = int(torch.nonzero(~losses.isfinite())[0])
            raise ConfigError(
                f"training.learning_rate: with {self._config.learning_rate} the loss is "
                f"{losses[first].item()} at step {first + 1}; choose a lower one"
            )

    def _loss(self, width: int) -> Tensor:
        """Run a step; return its loss, which a later step overwrites."""
        if not self._cuda or self.done < self._recorded_from:
            return self._compute(width)
        if width not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = self._compute(width)
            self._graphs[width] = graph, loss
        graph, loss = self._graphs[width]
        graph.replay()
        return loss

    def _compute(self, width: int) -> Tensor:
        self._model.train()
        self._optimizer.zero_grad()
        inputs = self._batches.inputs(self._events, width, self._config.event_dropout)
        targets = self._batches.targets(self._events)
        with torch.autocast("cuda", torch.bfloat16, enabled=self._bf16, cache_enabled=False):
            context = self._model.user_context(inputs, self._encoder)
            logits = self._model.decoder.sequence_logits(context, targets)
            sizes = self._model.spec.vocab_sizes
            loss = sequence_loss(logits, targets, self._config.label_smoothing, sizes)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self._model.parameters(), self._config.clip_norm, error_if_nonfinite=False)
        self._optimizer.step()
        self._model.eval()
        return loss.detach()


class _Best:
    """The weights with the highest score, if `validate_every` is set."""

    def __init__(self, model: Model, score: Callable[[], float]) -> None:
        self._model, self._score = model, score
        self.state: dict[str, Any] = {"weights": {}, "score": -math.inf, "worse": 0}

    def __str__(self) -> str:
        return f", NDCG@10 {self.state['score']:.4f}" if self.state["weights"] else ""

    def validate(self) -> None:
        if (score := self._score()) > self.state["score"]:
            weights = {name: weight.clone() for name, weight in self._model.state_dict().items()}
            self.state = {"weights": weights, "score": score, "worse": 0}
        else:
            self.state["worse"] += 1

    def choose(self) -> None:
        if self.state["weights"]:
            self._model.load_state_dict(self.state["weights"])


def sequence_loss(
    logits: tuple[Tensor, ...], targets: Tensor, smoothing: float = 0.0, sizes: Sequence[int] = ()
) -> Tensor:
    """Return the batch's mean -log p(SID).   logits [B, C_t] by position, targets int64 [B, L]

    Smoothing spreads over `sizes` tokens, not over the extra rows of a head after them.
    """
    losses = [
        functional.cross_entropy(x, targets[:, t], label_smoothing=smoothing)
        for t, x in enumerate(logits)
    ]
    for x, tokens in zip(logits, sizes, strict=False):
        if smoothing and x.shape[1] > tokens:
            losses.append(smoothing * (x.mean() - x[:, :tokens].mean()))
    return torch.stack(losses).sum()


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Return a rate that rises linearly to the configured one, then falls as half a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (1 + math.cos(math.pi * done)) / 2


@contextmanager
def reproducible(
    threads: int = 1, device: torch.device = CPU, seed: int = 0, products: str = "highest"
) -> Iterator[None]:
    """Make every run draw the same random numbers, and add in the same order.

    At the end, restore the process's settings.
    """
    before = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_WORKSPACE)
    if device.type == "cuda" and workspace is None:
        os.environ[_WORKSPACE] = ":4096:8"  # without it, cuBLAS may add in another order
    # `use_deterministic_algorithms` does the same, but first imports torch's compiler for seconds.
    torch.set_deterministic_debug_mode("error")
    # Torch would fill new memory to expose reads before writes. That takes an eighth of a step.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(products)
    try:
        with (
            # A graph records on the current device.
            torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.set_num_threads(before[1])
        torch.set_float32_matmul_precision(precision)
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


def _endless(batches: HistoryBatches, size: int, rng: np.random.Generator) -> Iterator[Int64]:
    """Yield batches from one shuffle after another; a batch may span two shuffles.

    A batch has histories of similar length, so it needs little padding.
    """
    examples = batches.log.examples()
    waiting = examples[:0]
    while True:
        while len(waiting) < _SORTED_BATCHES * size:
            waiting = np.concatenate([waiting, rng.permutation(examples)])
        drawn, waiting = np.split(waiting, [_SORTED_BATCHES * size])
        drawn = drawn[np.argsort(batches.lengths(drawn), kind="stable")]
        yield from rng.permutation(drawn.reshape(_SORTED_BATCHES, size))
