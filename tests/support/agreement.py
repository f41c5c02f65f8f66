"""Calls of fast bodies on the cases of their operations, compared with the references."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from grace.kernels import REFERENCE, Candidates, Ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.cross_attention_triton import cross_attention_triton
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.kernels.features.feature_ops import PLAIN_FEATURES, FeatureOps
from grace.kernels.ops_cuda import CUDA_ENCODER, CUDA_FEATURES
from support import encoder_op_cases, op_cases
from support.op_case import Arguments, OpCase, Rng, copied, normal, row_scales
from support.op_cases import attention_pool, cross_in, cross_inputs
from support.plain_inputs import named_tensors
from support.prompt_op_cases import beams, in_type, prompts

Table: TypeAlias = Ops | EncoderOps | FeatureOps

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
TRITON = (
    *("self_attention", "cross_attention", "row_factors", "activate", "rearrange"),
    *("causal_attention", "prompt_attention", "place_heads", "log_sums"),
)
"""The decoder's operations with bodies in Triton."""

_INTEGERS = ("eligible_nodes", "admit_children", "select_beams", "rearrange")
"""Operations whose arguments have one type."""


@dataclass(frozen=True)
class Call:
    """A body, its arguments, and the reference whose result it must return."""

    name: str
    body: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: Arguments
    dtype: torch.dtype
    low: bool = False  # an interpreter takes 16 bits
    writes: bool = False  # to its arguments


def decoder_calls(ops: Ops, names: Collection[str], dtypes: Collection[torch.dtype]) -> list[Call]:
    cases = {name: (*op_cases.CASES[name], *_NOT_FINITE.get(name, ())) for name in names}
    return list(_calls(ops, REFERENCE, cases, dtypes, _returning_all))


def _returning_all(ops: Ops, name: str) -> Callable[..., Any]:
    """Return an operation that returns what it writes, too."""
    if name != "place_heads":
        body: Callable[..., Any] = getattr(ops, name)
        return body
    return lambda given, pairs: (ops.place_heads(given, pairs), pairs)


def encoder_calls(
    dtypes: Collection[torch.dtype], most: int | None = None, ops: EncoderOps = CUDA_ENCODER
) -> list[Call]:
    """Return at most `most` cases of each operation in every type."""
    cases = {name: own[:most] for name, own in encoder_op_cases.CASES.items()}
    return list(_calls(ops, PLAIN_ENCODER, cases, dtypes, encoder_op_cases.on_copies))


def feature_calls(dtypes: Collection[torch.dtype]) -> list[Call]:
    cases, run_once = encoder_op_cases.FEATURE_CASES, encoder_op_cases.run_once
    return list(_calls(CUDA_FEATURES, PLAIN_FEATURES, cases, dtypes, run_once))


def calls_in_turns(dtypes: Collection[torch.dtype]) -> Iterator[Call]:
    """Yield cross-attention whose programs have several blocks of beams, the last not full."""
    for programs, dtype in product((2, 3), dtypes):
        body = partial(cross_attention_triton, programs=programs)
        name = f"cross_attention-{programs}-programs-{dtype}"
        yield Call(name, body, REFERENCE.cross_attention, _many_beams, dtype, low=True)


def _calls(
    fast: Table,
    plain: Table,
    cases: Mapping[str, tuple[OpCase, ...]],
    dtypes: Collection[torch.dtype],
    adapted: Callable[..., Callable[..., Any]] = getattr,
) -> Iterator[Call]:
    for name, own in cases.items():
        for case in own:
            for dtype in (torch.float32,) if name in _INTEGERS else dtypes:
                yield Call(
                    f"{name}-{case.name}-{str(dtype).removeprefix('torch.')}",
                    adapted(fast, name),
                    adapted(plain, name),
                    case.arguments,
                    dtype,
                    case.low,
                    writes=isinstance(plain, EncoderOps) or name == "place_heads",
                )


def difference(call: Call, device: str) -> str | None:
    """Return how the body differs from its reference, or writes to its arguments; or None."""
    arguments = call.arguments(np.random.default_rng(7), call.dtype)
    expected = call.reference(*copied(arguments))
    own = copied(arguments, device)
    with poisoned_memory():
        got = call.body(*own)
    if isinstance(expected, Candidates):
        got, expected = got.packed(), expected.packed()
    pairs = [*_pairs(got, expected)]
    for name, one, other in pairs:
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{call.name}{name}: {one.dtype} {[*one.shape]}, not {[*other.shape]}"
        tolerance = TOLERANCE.get(other.dtype, 0.0)
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            apart = (one.double() - other.double()).abs().nan_to_num(torch.inf).max()
            return f"{call.name}{name}: differs by up to {float(apart)}"
    for name, one, other in [] if call.writes else _pairs(own, arguments):
        if not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
            return f"{call.name}: argument {name} is another"
    return None if pairs else f"{call.name}: no result"


def _pairs(got: object, expected: object) -> Iterator[tuple[str, Tensor, Tensor]]:
    for (name, one), (_, other) in zip(named_tensors(got), named_tensors(expected), strict=True):
        yield name, one.cpu(), other


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within it, new memory is filled with NaN; a reference on a GPU must run outside of it."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _many_beams(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
    given = cross_in(cross_inputs(rng, 2, 131, 1, 31, 16), dtype)
    rows = torch.from_numpy(rng.permutation(262).astype(np.int32))
    return (replace(given, row_scale=row_scales(rng, 262), query_rows=rows),)


def _corrupt_pool(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
    """Three rows each read one block that is not finite; no other row may change."""
    shape = attention_pool(rng, 7, 3, 2, 2, 8)[0].shape
    pool, table = normal(rng, *shape), torch.arange(21, dtype=torch.int32).view(7, 3)
    pool[table[1, 2], 0, 1, 3], pool[table[3, 0], 1, 0, 0] = torch.nan, torch.inf
    pool[table[5, 1], 2, 1, 7] = torch.nan
    scales = row_scales(rng, len(pool))
    return (PagedPrefixes(pool.to(dtype), table, 2, normal(rng, 2, 3), 0.5, scales),)


def _corrupt_queries(rng: Rng, dtype: torch.dtype) -> tuple[BeamQueries]:
    given = cross_inputs(rng, 3, 5, 2, 13, 8, scale=0.5)
    given.queries[6, 3], given.queries[14, 12] = torch.nan, torch.inf
    return (cross_in(given, dtype),)


def _corrupt_prompts(count: int, rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
    given = prompts(rng, (7, 33, 5), 2, 3, 10)
    given.pairs[9, 0, 1, 3] = torch.inf  # a key
    asked = beams(given, rng, count, 2) if count else given
    asked.queries[3, 5] = torch.nan
    return (in_type(asked, dtype),)


def _corrupt_hidden(ffn: str, rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
    hidden = normal(rng, 5, 14)
    hidden[1, 3], hidden[3, 9], hidden[2, 0] = torch.nan, torch.nan, torch.inf
    return hidden.to(dtype), row_scales(rng, 5), ffn


def _corrupt_rows(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
    x = normal(rng, 5, 37)
    x[1, 36], x[3, 0] = torch.nan, torch.inf
    return x.to(dtype), 1e-6


_NOT_FINITE: Mapping[str, tuple[OpCase, ...]] = {
    "self_attention": (OpCase("not-finite", _corrupt_pool),),
    "cross_attention": (OpCase("not-finite", _corrupt_queries),),
    "causal_attention": (OpCase("not-finite", partial(_corrupt_prompts, 0)),),
    "prompt_attention": (OpCase("not-finite", partial(_corrupt_prompts, 5)),),
    "row_factors": (OpCase("not-finite", _corrupt_rows),),
    "activate": tuple(
        OpCase(f"{ffn}-not-finite", partial(_corrupt_hidden, ffn)) for ffn in ("relu", "gated_gelu")
    ),
}
