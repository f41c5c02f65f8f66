"""The operations of a causal model's layers, each alone, with the inputs of a real batch.

The loop runs once, operation by operation, and its calls are kept. A run repeats those of one
operation and size for all layers, so weights, keys and values come from memory. Before the smallest
batch is timed, each operation's first call agrees with its definition. The definition of a product
of plain weights is the product in float32.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from grace.bench.gpu.instruments.measure import require_close
from grace.bench.gpu.subjects.causal_model import Shape, random_causal, random_prompts
from grace.bench.gpu.subjects.workload import Workload
from grace.bench.result_file import Row
from grace.kernels import REFERENCE, DecodeIndex, Ops, admission_slot
from grace.kernels.attention.prompt_attention import PromptQueries
from grace.kernels.products.fp8_products import E4M3, REFERENCE_ROUNDED, RoundedOps
from grace.model.definition.inputs import map_tensors
from grace.model.engine.causal.decoder import CausalSteps, PromptRoom, read_prompts
from grace.model.engine.causal.weights import CausalWeights
from grace.model.engine.fast_search import search
from grace.model.engine.precision import Precision

_OPERATIONS = "causal_attention", "prompt_attention", "place_heads", "log_sums", "activate"
_ROUNDED = "product", "add_product", "hidden", "log_sums"
_TORCH = {functional.linear: "linear", Tensor.addmm_: "addmm_"}
_FACTORS: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "linear": lambda x, weight, *_: (x, weight),
    "addmm_": lambda _, x, weight: (x, weight.t()),
    "product": lambda x, weight, _: (x, weight.rounded),
    "add_product": lambda given: (given.rounded, given.weight.rounded),
    "hidden": lambda x, weight, _: (x.rows, weight.rounded),
    "log_sums": lambda x, head, _: (getattr(x, "rows", x), getattr(head, "rounded", head)),
}
"""The rows and the weight of each product."""

_Any: TypeAlias = Callable[..., Any]
_Table = TypeVar("_Table", Ops, RoundedOps)


@dataclass(frozen=True, slots=True)
class _Call:
    operation: str
    run: _Any
    definition: _Any | None
    args: tuple[Any, ...]

    def check(self) -> None:
        own, plain = (map_tensors(self.args, Tensor.clone) for _ in range(2))
        if self.definition is None:
            plain = map_tensors(plain, Tensor.float)
        got, expected = self.run(*own), (self.definition or self.run)(*plain)
        written = slice(-1, None) if self.operation in ("product", "place_heads") else slice(0)
        for one, other in zip(
            _tensors((got, *own[written])), _tensors((expected, *plain[written])), strict=True
        ):
            rounded = E4M3 if one.dtype == E4M3 else torch.bfloat16
            require_close(self.operation, one, other, rounded)

    def size(self, layer: Mapping[tuple[int, ...], str]) -> tuple[str, int, float]:
        """Return its name in a layer (empty: not of a layer), its rows and its operations."""
        name, first = self.operation, self.args[0]
        if name in _FACTORS:
            rows, weight = _FACTORS[name](*self.args)
            name = name if name == "log_sums" else layer.get(tuple(weight.shape), "")
            return name, len(rows), 2.0 * len(rows) * weight.numel()
        if name in ("place_heads", "activate"):
            return name, len(_tensors(self.args)[0]), 0.0
        lengths, (rows_of_all, inner) = first.offsets.diff().double(), first.queries.shape
        keys = float((lengths * (lengths + 1) / 2).sum())
        if isinstance(first, PromptQueries):
            name += f", step {first.step}"
            keys = float(lengths.mean() + first.step) * rows_of_all
        return name, rows_of_all, 4.0 * inner * keys


def _tensors(value: tuple[Any, ...]) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, keep)
    return found


class _Recorder(TorchFunctionMode):
    """Keeps the calls of operations and, as a mode, of torch's products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(
        self, function: _Any, _: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _TORCH:
            self.calls.append(_Call(_TORCH[function], function, None, args))
        return function(*args, **(kwargs or {}))

    def of(self, table: _Table, definition: _Table, names: tuple[str, ...]) -> _Table:
        def kept(name: str, *args: Any) -> Any:
            run = getattr(table, name)
            call = _Call(name, run, getattr(definition, name), args)
            before, result = len(self.calls), run(*args)
            self.calls[before:] = [call]  # instead of the products within it
            return result

        return replace(table, **{name: partial(kept, name) for name in names})


def layer_parts(
    work: Workload, shape: Shape, precision: Precision, index: DecodeIndex
) -> Iterator[Row]:
    model, spec = random_causal(shape.spec, work.device), shape.spec.causal
    weights = CausalWeights.of(model.decoder, precision)
    del model
    inner = spec.heads * spec.d_head
    names: dict[tuple[int, ...], str] = {
        (inner + 2 * spec.kv_heads * spec.d_head, spec.d_model): "qkv",
        (spec.d_model, inner): "self_out, added",
        (2 * spec.d_ff, spec.d_model): "gate and up",
        (spec.d_model, spec.d_ff): "down, added",
    }
    for batch in shape.batches:
        groups: dict[tuple[str, str, int, float], list[_Call]] = {}
        for call in _calls(work, shape, weights, index, batch):
            groups.setdefault((call.operation, *call.size(names)), []).append(call)
        for key, calls in [*groups.items()]:
            # The last layer computes some of it for the prompts' last tokens only.
            if not key[1] or (len(calls) + 1 < spec.layers and key[1] != "log_sums"):
                del groups[key]
            elif batch == shape.batches[0]:
                calls[0].check()
        for (_, name, rows, flop), calls in groups.items():
            runs = [partial(_discarded, call.run, call.args) for call in calls]
            timing = work.timed_calls(runs, None)
            yield {
                "measure": "part",
                "kernel": name,
                "variant": shape.name,
                "precision": precision,
                "rows": rows,
                **timing.row(),
                "tflops": float(f"{flop / timing.p50_ms / 1e9:.4g}"),
            }


def _discarded(run: _Any, args: tuple[Any, ...]) -> None:
    run(*args)


def _calls(
    work: Workload, shape: Shape, weights: CausalWeights, index: DecodeIndex, batch: int
) -> list[_Call]:
    """Return the calls of a batch of the longest prompts."""
    recorder, ops = _Recorder(), work.load_ops(work.device)
    kept = recorder.of(ops, REFERENCE, _OPERATIONS)
    if weights.rounded is not None:
        rounded = recorder.of(weights.rounded, REFERENCE_ROUNDED, _ROUNDED)
        weights = replace(weights, rounded=rounded)
    prompts = random_prompts(shape.spec, batch, "longest", 0, work.device)
    room = PromptRoom.of(weights, batch, shape.spec.prompt.max_tokens)
    task = shape.task(batch, index)
    room.place(prompts.values, prompts.offsets, prompts.total)
    slot = admission_slot(ops)
    slot.point_at(task.users, index)
    with recorder:
        read_prompts(weights, room, prompts.total, kept)
        steps = CausalSteps(weights, room, batch, batch * sum(task.profile.beams), kept)
        search(steps, batch, slot, task.profile, kept, work.device)
    return recorder.calls
