"""Inputs on which bodies must agree with their references: of the encoders, and of features."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.kernels.encoder.encoder_attention import Part, TokenQueries
from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.kernels.encoder.token_product import (
    After,
    Norm,
    Run,
    TokenProduct,
    empty_squares,
    write_squares,
)
from grace.kernels.features.feature_ops import SingleInputs, SingleTables
from grace.kernels.ops_cuda import CUDA_ENCODER
from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import map_tensors
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.engine.encoder_decoder.fast_encoder import fast_encoder
from grace.proto.retrieval_pb2 import Features
from support.encoder_cases import random_features, tensors_of
from support.op_case import Arguments, OpCase, Rng, copied, normal
from support.plain_inputs import encode_inputs


def on_copies(ops: EncoderOps, name: str) -> Callable[..., Any]:
    """Return an operation that returns all that it writes."""
    operation: Callable[..., Any] = getattr(ops, name)

    def arrange_tokens(*arguments: Any) -> tuple[Tensor, ...]:
        tokens, squares, mask = operation(*arguments)
        gated = arguments[0][:, :, 0].numel()
        return tokens[:, gated:], _mean_squares(tokens, squares)[:, gated:], mask

    def token_product(
        x: Tensor, weight: Tensor, out: Tensor | None, runs: Any, after: Any, other: Any, eps: Any
    ) -> tuple[Tensor, Tensor]:
        """Without `out`, write into x; without `other`, add to `out`."""
        norm = None if eps is None else Norm(_squares_of(x), eps)
        written = x if out is None else out
        if after == "add":  # all requests may share what is added
            other = written if other is None else other.expand(len(x), -1, -1)
        squares = empty_squares(written).fill_(5.0)
        got = operation(TokenProduct(x, weight, written, runs, after, other, norm, squares))
        return got, _mean_squares(got, squares)

    def share_user(tokens: Tensor, user: Tensor, begins: Any) -> tuple[Tensor, ...]:
        squares = _squares_of(tokens)
        mean, own = operation(tokens, squares, user, begins)
        return tokens, _mean_squares(tokens, squares), mean, _mean_squares(mean, own)

    adapted = (arrange_tokens, token_product, share_user)
    return {each.__name__: each for each in adapted}.get(name, operation)


def _squares_of(tokens: Tensor) -> Tensor:
    """Return squares in parts that are not all in the first place."""
    squares = empty_squares(tokens)
    write_squares(tokens, squares)
    squares[:, :, 0] /= 2
    squares[:, :, -1] += squares[:, :, 0]
    return squares


def _mean_squares(tokens: Tensor, squares: Tensor) -> Tensor:
    """Return each token's mean square, whatever parts its sum is in."""
    return (squares.sum(dim=2) / tokens.shape[2]).to(tokens.dtype)


def _cast(make: Callable[[Rng], tuple[Any, ...]]) -> Arguments:
    return lambda rng, dtype: copied(make(rng), dtype=dtype)


def _normed(*shape: int) -> OpCase:
    def arguments(rng: Rng) -> tuple[Any, ...]:
        return 3.0 * normal(rng, *shape), 1.0 + 0.2 * normal(rng, shape[-1]), 1e-6

    return OpCase(f"{list(shape)}", _cast(arguments))


def _normed_not_finite(rng: Rng) -> tuple[Any, ...]:
    x = normal(rng, 5, 37)
    x[1, 36], x[3, 0] = torch.nan, torch.inf
    return x, normal(rng, 37), 1e-6


def _attended(
    queries: int, keys: int, heads: int, d: int, *, masked: bool = True, biased: bool = False
) -> OpCase:
    """Keys and values side by side, as one product makes them. The last request has no key."""

    def arguments(rng: Rng) -> tuple[Any, ...]:
        inner = heads * d
        pairs = normal(rng, 3, keys, 2 * inner)
        k, v = pairs.chunk(2, dim=-1)
        mask = torch.from_numpy(rng.random((3, keys)) < 0.7)
        mask[2] = False
        pairs[~mask] = 99.0
        bias = normal(rng, heads, queries + keys - 1) if biased else None
        q = normal(rng, 3, queries, inner)
        return (TokenQueries(q, k, v, heads, 0.3, mask if masked else None, bias),)

    kind = ("-masked" if masked else "") + ("-biased" if biased else "")
    return OpCase(f"{queries}-of-{keys}-heads={heads}-d={d}{kind}", _cast(arguments))


def _attended_not_finite(rng: Rng) -> tuple[Any, ...]:
    """A query of one request and a value of another are NaN; the other requests may not change."""
    q, k, v = (normal(rng, 4, 9, 10) for _ in "qkv")
    q[1, 3, 2], v[3, 8, 9] = torch.nan, torch.nan
    return (TokenQueries(q, k, v, 2, 0.5),)


def _in_parts(parts: tuple[Part, ...], heads: int, d: int, *, masked: bool = True) -> OpCase:
    """Queries, keys and values side by side; only the second part of request 1 has no key."""

    def arguments(rng: Rng) -> tuple[Any, ...]:
        tokens = max(part.key + part.keys for part in parts)
        q, k, v = normal(rng, 3, tokens, 3 * heads * d).chunk(3, dim=-1)
        mask = torch.from_numpy(rng.random((3, tokens + 2)) < 0.7)[:, 2:]
        mask[1, parts[1].key : parts[1].key + parts[1].keys] = False
        out = torch.full((3, tokens, heads * d), 7.0)
        return (TokenQueries(q, k, v, heads, 0.3, mask if masked else None, None, parts, out),)

    kind = "-masked" if masked else ""
    sizes = [f"{part.queries}-of-{part.keys}" for part in parts]
    return OpCase(f"{'-and-'.join(sizes)}-heads={heads}-d={d}{kind}", _cast(arguments))


def _product(
    inner: int,
    wide: int,
    runs: tuple[Run, ...],
    after: After = "nothing",
    *,
    normed: bool = True,
    shape: tuple[int, int, int] = (3, 19, 17),
    in_place: bool = False,
) -> OpCase:
    """`shape` has the requests, and the tokens of x and out."""

    def arguments(rng: Rng) -> tuple[Any, ...]:
        requests, sources, targets = shape
        x = 3.0 * normal(rng, requests, sources, inner + 8)[:, :, :inner]
        weight = normal(rng, len(runs), wide, inner) / inner**0.5
        out: Tensor | None = torch.full((requests, targets, wide), 7.0)
        other = None
        if after == "open":
            other = normal(rng, requests, 1, len(runs) * wide)
        elif after == "opening":
            weight *= 20.0  # the sigmoid gets to 0 and to 1
        elif after == "add" and not in_place:
            other = normal(rng, 1, targets, wide)
        elif in_place and after == "gate":
            out = None
        return x, weight, out, runs, after, other, 1e-6 if normed else None

    kind = ("-normed" if normed else "") + ("-in-place" if in_place else "")
    return OpCase(
        f"{list(shape)}-{inner}-to-{wide}-{len(runs)}-runs-{after}{kind}", _cast(arguments)
    )


def _product_not_finite(rng: Rng) -> tuple[Any, ...]:
    """One token is NaN and another infinite; no other token may change."""
    x = normal(rng, 2, 5, 24)
    x[0, 3, 5], x[1, 1, 0] = torch.nan, torch.inf
    weight, out = normal(rng, 1, 24, 24), torch.zeros(2, 5, 24)
    return x, weight, out, (Run(0, 0, 5),), "relu", None, 1e-6


def _arranged(requests: int, lengths: tuple[int, ...], m: int, own: int, d: int) -> OpCase:
    def arguments(rng: Rng) -> tuple[Any, ...]:
        states = tuple(normal(rng, requests, sum(lengths), d)[:, -n:] for n in lengths)
        masks = tuple(torch.from_numpy(rng.random((requests, n)) < 0.5) for n in lengths)
        return normal(rng, len(lengths), m, d), normal(rng, requests, own, d), states, masks

    return OpCase(f"{requests}x{lengths}-{m}-{own}-d={d}", _cast(arguments))


def _shared(requests: int, tokens: int, count: int, d: int, begins: tuple[int, ...]) -> OpCase:
    def arguments(rng: Rng) -> tuple[Any, ...]:
        return normal(rng, requests, tokens, d), normal(rng, requests, count, d), begins

    return OpCase(f"{requests}x{tokens}-{count}-at-{begins}-d={d}", _cast(arguments))


CASES: Mapping[str, tuple[OpCase, ...]] = {
    "rms_norm": (
        _normed(63, 24),
        _normed(3, 7, 512),
        _normed(5, 11, 21),
        _normed(3, 1, 2111),
        OpCase("not-finite", _cast(_normed_not_finite)),
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
        _in_parts((Part(0, 68, 0, 68), Part(68, 1, 68, 1), Part(69, 131, 69, 131)), 2, 16),
        _in_parts((Part(3, 65, 0, 68), Part(71, 61, 68, 132)), 1, 64),
        _in_parts((Part(0, 3, 0, 5), Part(5, 2, 5, 70)), 1, 21, masked=False),
        OpCase("not-finite", _cast(_attended_not_finite)),
    ),
    "arrange_tokens": (
        _arranged(3, (9, 5), m=2, own=5, d=24),
        _arranged(2, (31, 1, 66), m=4, own=9, d=512),
        _arranged(5, (), m=3, own=7, d=21),
    ),
    "token_product": (
        _product(24, 40, (Run(1, 3, 11),)),
        _product(37, 21, (Run(0, 2, 7), Run(12, 13, 1), Run(8, 9, 4)), "relu"),
        _product(64, 72, (Run(2, 0, 9), Run(11, 9, 8)), "open"),
        _product(24, 40, (Run(0, 0, 1),), "opening", shape=(3, 1, 1)),
        _product(21, 21, (Run(7, 0, 2), Run(12, 2, 2)), "gate", in_place=True),
        _product(64, 64, (Run(0, 5, 11),), "gate"),
        _product(40, 24, (Run(3, 0, 5), Run(8, 7, 10)), "add", normed=False, in_place=True),
        _product(512, 72, (Run(0, 0, 1),), "add", normed=False, shape=(5, 1, 1)),
        _product(72, 520, (Run(1, 1, 131), Run(132, 0, 1)), "relu", shape=(1, 133, 132)),
        OpCase("not-finite", _cast(_product_not_finite)),
    ),
    "share_user": (
        _shared(3, 17, 4, 24, (1, 9)),
        _shared(2, 5, 3, 521, (2,)),
        _shared(1, 7, 1, 21, (0, 3, 6)),
    ),
}


def _events(batch: int, lengths: tuple[int, ...], ids: int, d: int) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        table = normal(rng, 41, d)
        table[-1] = 0.0
        events = rng.integers(41, size=(batch, sum(lengths), ids), dtype=np.int32)
        events[rng.random(events.shape[:2]) < 0.3] = 40  # no event
        return table.to(dtype), torch.from_numpy(events), lengths

    return OpCase(f"{batch}x{lengths}-ids={ids}-d={d}", arguments)


def _inputs(
    sizes: tuple[int, ...], bags: int, width: int, dense: int = 0, numbers: int = 0, ids: int = 0
) -> OpCase:
    """One request for every `bags` bags of these sizes."""

    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        requests = len(sizes) // bags
        offsets = np.cumsum([0, *sizes], dtype=np.int32)
        rows = rng.integers(41, size=offsets[-1], dtype=np.int32)
        categorical = rng.integers(19, size=(requests, ids), dtype=np.int32)
        shapes = ((dense * width, numbers), (dense * width,), (19 if ids else 0, width))
        tables = SingleTables(*(normal(rng, *each).to(dtype) for each in (*shapes, (41, width))))
        found = (categorical, offsets, rows)
        return tables, SingleInputs(normal(rng, requests, numbers), *map(torch.from_numpy, found))

    return OpCase(f"{sizes}-bags={bags}-width={width}-dense={dense}-ids={ids}", arguments)


FEATURE_CASES: Mapping[str, tuple[OpCase, ...]] = {
    "sum_events": (
        _events(3, (7, 5, 3), ids=6, d=24),
        _events(2, (9,), ids=1, d=2111),
        _events(5, (1, 17), ids=8, d=512),
    ),
    "join_inputs": (
        _inputs((0, 3, 67, 0, 32, 8), bags=2, width=24, dense=3, numbers=7, ids=5),
        _inputs((1, 33), bags=1, width=131, ids=1),
        _inputs((0,), bags=1, width=7),
        _inputs((5, 9), bags=2, width=129, dense=1, numbers=19),
    ),
}


def run_once(table: Any, name: str) -> Callable[..., Any]:
    """Return an operation of features that is prepared and run."""
    return lambda *arguments: getattr(table, name)(*arguments)()


def encoder_difference(spec: EncoderDecoderSpec, device: str, dtype: torch.dtype) -> float:
    """Return how far the fast encoder's user context is from the definition's in float32.

    It is infinite if the encoder wrote to its features.
    """
    rng = np.random.default_rng(11)
    first, last = (random_features(spec, rng) for _ in range(2))
    model = random_model(spec, seed=3).requires_grad_(False)
    inputs = encode_inputs(spec, [first, Features(), last], 4)
    with torch.inference_mode():
        features = model.features(inputs)
        expected = model.encoder(features)
        given = copied(features, device, dtype)
        before = map_tensors(given, Tensor.clone)
        got = fast_encoder(model.to(device), dtype, CUDA_ENCODER)(given)
    untouched = all(map(torch.equal, tensors_of(given), tensors_of(before)))
    if not untouched or not torch.equal(got.mask.cpu(), expected.mask):
        return math.inf
    return float((got.states.cpu().float() - expected.states).abs().max())
