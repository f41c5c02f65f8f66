"""Inputs on which the bodies of an encoder's operations must agree with their references."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.kernels.ops_cuda import CUDA_ENCODER
from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.spec import ModelSpec
from support.encoder_cases import random_features
from support.op_cases import OpCase, mapped, normal
from support.plain_inputs import RequestFeatures, encode_inputs
from support.triton_agreement import Call


def encoder_calls(dtypes: tuple[torch.dtype, ...], most: int | None = None) -> Iterator[Call]:
    """Yield every operation's cases in every type, at most `most` cases for each operation."""
    for field in fields(EncoderOps):
        for case in CASES[field.name][:most]:
            for dtype in dtypes:
                yield Call(
                    f"{field.name}-{case.name}-in-{str(dtype).removeprefix('torch.')}",
                    getattr(CUDA_ENCODER, field.name),
                    getattr(PLAIN_ENCODER, field.name),
                    _in_type(case.arguments, dtype),
                )


def _in_type(
    arguments: Callable[[np.random.Generator], tuple[Any, ...]], dtype: torch.dtype
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Cast floats to that type; a slice stays a slice of a wider tensor."""

    def cast(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype).copy_(value)

    return lambda rng: tuple(map(cast, arguments(rng)))


def _normed(shape: tuple[int, ...], head: int | None = None) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        x = 3.0 * normal(rng, *shape)
        return x if head is None else x[:, :head], 1.0 + 0.2 * normal(rng, shape[-1]), 1e-6

    return OpCase(f"{list(shape)}" + (f"-head={head}" if head else ""), arguments)


def _normed_not_finite(rng: np.random.Generator) -> tuple[Any, ...]:
    x = normal(rng, 5, 37)
    x[1, 36], x[3, 0] = torch.nan, torch.inf
    return x, normal(rng, 37), 1e-6


def _attended(
    queries: int, keys: int, heads: int, d: int, *, masked: bool = True, biased: bool = False
) -> OpCase:
    """Keys and values side by side, as one product makes them. The last request has no key."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        inner = heads * d
        pairs = normal(rng, 3, keys, 2 * inner)
        k, v = pairs.chunk(2, dim=-1)
        mask = torch.from_numpy(rng.random((3, keys)) < 0.7)
        mask[2] = False
        pairs[~mask] = 99.0
        bias = normal(rng, heads, queries + keys - 1) if biased else None
        return normal(rng, 3, queries, inner), k, v, heads, 0.3, mask if masked else None, bias

    kind = ("-masked" if masked else "") + ("-biased" if biased else "")
    return OpCase(f"{queries}-of-{keys}-heads={heads}-d={d}{kind}", arguments)


def _attended_not_finite(rng: np.random.Generator) -> tuple[Any, ...]:
    """A query of one request and a value of another are NaN; the other requests may not change."""
    q, k, v = (normal(rng, 4, 9, 10) for _ in "qkv")
    q[1, 3, 2], v[3, 8, 9] = torch.nan, torch.nan
    return q, k, v, 2, 0.5


def _added(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, 3, 11, 24), normal(rng, 3, 11, 37), 0.1 * normal(rng, 24, 37)


def _gated(shape: tuple[int, ...], head: int | None = None) -> OpCase:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        x = normal(rng, *shape)[:, :head]
        opening = 9.0 * normal(rng, *x.shape)
        opening[0, 0, :2] = torch.tensor([-80.0, 80.0])
        return x, opening

    return OpCase(f"{list(shape)}" + (f"-head={head}" if head else ""), arguments)


def _opened(*shape: int) -> OpCase:
    return OpCase(
        f"{list(shape)}",
        lambda rng: (normal(rng, *shape), 9.0 * normal(rng, shape[0], shape[2])),
    )


def _opened_not_finite(rng: np.random.Generator) -> tuple[Any, ...]:
    hidden, openings = normal(rng, 3, 5, 7), normal(rng, 3, 7)
    hidden[1, 2, 3], openings[2, 6] = torch.nan, torch.nan
    return hidden, openings


CASES: Mapping[str, tuple[OpCase, ...]] = {
    "rms_norm": (
        _normed((63, 24)),
        _normed((3, 7, 512)),
        _normed((5, 11, 21), head=3),
        _normed((3, 1, 2111)),
        OpCase("not-finite", _normed_not_finite),
    ),
    "attention": (
        _attended(4, 32, 2, 16, masked=False),
        _attended(68, 68, 1, 64),
        _attended(7, 131, 2, 21),
        _attended(65, 67, 1, 64),
        _attended(5, 193, 1, 72),
        _attended(17, 257, 1, 33, biased=True),
        _attended(33, 33, 2, 7, biased=True),
        _attended(67, 67, 1, 16, masked=False, biased=True),
        _attended(3, 1, 2, 8, biased=True),
        OpCase("not-finite", _attended_not_finite),
    ),
    "add_product": (OpCase("odd-sizes", _added),),
    "gate": (_gated((3, 7, 21)), _gated((3, 11, 40), head=4), _gated((1, 1, 1111))),
    "open_hidden": (
        _opened(3, 7, 37),
        _opened(1, 9, 1024),
        OpCase("not-finite", _opened_not_finite),
    ),
}


def encoder_difference(spec: ModelSpec, device: str, dtype: torch.dtype) -> float:
    """Return how far the user context of the faster table is from the plain one's in float32.

    It is infinite if the encoder wrote to its features.
    """
    rng = np.random.default_rng(11)
    first, last = (random_features(spec, rng) for _ in range(2))
    model = random_model(spec, seed=3).requires_grad_(False)
    inputs = encode_inputs(spec, [first, RequestFeatures(), last], 4)
    with torch.inference_mode():
        features = model.features(inputs)
        expected = model.encoder(features)
        place = torch.device(device)
        given = mapped(features, lambda x: _moved(x, place, dtype))
        before = mapped(given, Tensor.clone)
        got = model.encoder.to(place, dtype)(given, CUDA_ENCODER)
    untouched = all(map(torch.equal, _tensors(given), _tensors(before)))
    if not untouched or not torch.equal(got.mask.cpu(), expected.mask):
        return math.inf
    return float((got.states.cpu().float() - expected.states).abs().max())


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    moved = tensor.to(device, copy=True)
    return moved.to(dtype) if moved.is_floating_point() else moved


def _tensors(features: FeatureTensors) -> list[Tensor]:
    single = [] if features.non_sequence is None else [features.non_sequence]
    return single + [x for each in features.sequences for x in (each.states, each.mask)]
