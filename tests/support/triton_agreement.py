"""Differences between Triton bodies and their references, on a GPU or interpreted on a CPU."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.kernels import REFERENCE
from grace.kernels.decode.cross_attention_triton import (
    CrossAttentionTiles,
    cross_attention_triton,
)
from grace.kernels.decode.self_attention_triton import SelfAttentionTiles, self_attention_triton
from grace.kernels.ops_cuda import CUDA_DECODER
from support.op_cases import (
    CASES,
    OpCase,
    attention_pool,
    cross_inputs,
    mapped,
    normal,
    row_scales,
)

TRITON: Mapping[str, Callable[..., Tensor]] = {
    name: getattr(CUDA_DECODER, name)
    for name in ("self_attention", "cross_attention", "row_factors", "activate", "rearrange")
}

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

_PAYLOADS = {"self_attention": 1, "cross_attention": 3, "row_factors": 1, "activate": 1}
"""The number of an operation's first arguments that are cast to the type under test."""


@dataclass(frozen=True)
class Call:
    """A body, its arguments, and the reference whose result it must return."""

    name: str
    body: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    blocked: bool = False  # in tiles other than the launcher chooses


def calls(dtypes: tuple[torch.dtype, ...]) -> Iterator[Call]:
    """Yield every case of every operation in every type, and cases of particular tiles."""
    for name, body in TRITON.items():
        more = _NOT_FINITE.get(name, ())
        for case in (*CASES[name], *more):
            for dtype in dtypes if name in _PAYLOADS else (torch.int32,):
                kind = str(dtype).removeprefix("torch.")
                yield Call(
                    f"{name}-{case.name}-in-{kind}",
                    body,
                    getattr(REFERENCE, name),
                    _in_type(case.arguments, _PAYLOADS.get(name, 0), dtype),
                )
    for tiles in (SelfAttentionTiles(4, 1, 2), SelfAttentionTiles(1, 8, 4)):
        for case in CASES["self_attention"][8:9]:
            yield Call(
                f"self_attention-{case.name}-{tiles}",
                partial(self_attention_triton, tiles=tiles),
                REFERENCE.self_attention,
                case.arguments,
            )
    for turns, stages in ((3, 1), (3, 2), (2, 3)):
        for keys in (16, 32):
            for dtype in dtypes:
                blocks = CrossAttentionTiles(16, keys, turns, 4, stages)
                yield Call(
                    f"cross_attention-{blocks}-{dtype}",
                    partial(cross_attention_triton, tiles=blocks),
                    REFERENCE.cross_attention,
                    _in_type(_many_turns, 3, dtype),
                    blocked=True,
                )


def difference(call: Call, device: str) -> str | None:
    """Return how the body differs from its reference in one call, or None."""
    arguments = call.arguments(np.random.default_rng(7))
    expected = call.reference(*arguments)
    got = call.body(*mapped(arguments, lambda tensor: _moved(tensor, device))).cpu()
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{call.name}: {got.dtype} {list(got.shape)}, not {list(expected.shape)}"
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    if torch.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    apart = (got.double() - expected.double()).abs()
    return f"{call.name}: differs by up to {float(apart.nan_to_num(torch.inf).max())}"


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within it, new memory is filled with NaN; a reference on a GPU must run outside of it."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _moved(tensor: Tensor, device: str) -> Tensor:
    """Copy a tensor to the device with its strides."""
    if device == "cpu":
        return tensor
    moved = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device(device)
    )
    return moved.copy_(tensor)


def _in_type(
    arguments: Callable[[np.random.Generator], tuple[Any, ...]], payloads: int, dtype: torch.dtype
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    def converted(rng: np.random.Generator) -> tuple[Any, ...]:
        made = arguments(rng)
        return *(x.to(dtype) for x in made[:payloads]), *made[payloads:]

    return converted


def _many_turns(rng: np.random.Generator) -> tuple[Any, ...]:
    """More beams than one program has, and a last block that is not full."""
    queries, keys, values, mask = cross_inputs(rng, 2, 37, 1, 31, 16)
    rows = torch.from_numpy(rng.permutation(74).astype(np.int32))
    return queries, keys, values, mask, 0.3, row_scales(rng, 74), rows


def _corrupt_pool(rng: np.random.Generator) -> tuple[Any, ...]:
    """Three rows each read one block that is not finite; no other row may change."""
    pool, _ = attention_pool(rng, 7, 3, 2, 2, 8)
    pool = normal(rng, *pool.shape)
    table = torch.arange(21, dtype=torch.int32).view(7, 3)
    pool[table[1, 2], 0, 1, 3], pool[table[3, 0], 1, 0, 0], pool[table[5, 1], 2, 1, 7] = (
        torch.nan,
        torch.inf,
        torch.nan,
    )
    return pool, table, 2, normal(rng, 2, 3), 0.5, row_scales(rng, len(pool))


def _corrupt_queries(rng: np.random.Generator) -> tuple[Any, ...]:
    queries, keys, values, mask = cross_inputs(rng, 3, 5, 2, 13, 8)
    queries[6, 3], queries[14, 12] = torch.nan, torch.inf
    return queries, keys, values, mask, 0.5


def _corrupt_hidden(ffn: str) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        hidden = normal(rng, 5, 14)
        hidden[1, 3], hidden[3, 9], hidden[2, 0] = torch.nan, torch.nan, torch.inf
        return hidden, row_scales(rng, 5), ffn

    return OpCase(f"{ffn}-not-finite", arguments)


def _corrupt_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    x = normal(rng, 5, 37)
    x[1, 36], x[3, 0] = torch.nan, torch.inf
    return x, 1e-6


_NOT_FINITE: Mapping[str, tuple[OpCase, ...]] = {
    "self_attention": (OpCase("not-finite", _corrupt_pool),),
    "cross_attention": (OpCase("not-finite", _corrupt_queries),),
    "row_factors": (OpCase("not-finite", _corrupt_rows),),
    "activate": (_corrupt_hidden("relu"), _corrupt_hidden("gated_gelu")),
}
