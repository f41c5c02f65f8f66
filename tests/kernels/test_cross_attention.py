"""Cross-attention with beams as queries against its formula over lists."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels.decode.cross_attention import cross_attention_reference
from support.op_cases import cross_inputs, row_scales


def plain(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_mask: Tensor,
    scale: float,
    row_scale: Tensor | None,
) -> Tensor:
    requests, heads, tokens, d_head = keys.shape
    k, v, mask = keys.tolist(), values.tolist(), key_mask.tolist()
    factors = [1.0] * len(queries) if row_scale is None else row_scale.tolist()
    rows = []
    for number, query in enumerate(queries.tolist()):
        request = number // (len(queries) // requests)
        present = [t for t in range(tokens) if mask[request][t]]
        row = [0.0] * (heads * d_head)
        for i in range(heads * d_head if present else 0):
            head = i // d_head
            q = query[head * d_head : (head + 1) * d_head]
            weight = [
                math.exp(
                    scale
                    * factors[number]
                    * sum(a * b for a, b in zip(q, k[request][head][t], strict=True))
                )
                for t in present
            ]
            mixed = sum(
                w * v[request][head][t][i % d_head] for w, t in zip(weight, present, strict=True)
            )
            row[i] = mixed / sum(weight)
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("beams", [1, 5], ids=lambda beams: f"beams={beams}")
@pytest.mark.parametrize("tokens", [1, 13], ids=lambda tokens: f"tokens={tokens}")
def test_beams_attend_to_the_present_keys_of_their_request(
    beams: int, tokens: int, scaled: bool
) -> None:
    rng = np.random.default_rng(tokens)
    inputs = cross_inputs(rng, 3, beams, heads=2, tokens=tokens, d_head=5)
    factors = row_scales(rng, 3 * beams) if scaled else None
    got = cross_attention_reference(*inputs, 0.7, factors)
    torch.testing.assert_close(got, plain(*inputs, 0.7, factors))


@pytest.mark.parametrize(
    ("requests", "beams", "heads", "tokens", "d_head"),
    [(5, 7, 2, 13, 8), (8, 3, 2, 13, 32), (7, 7, 3, 5, 32), (7, 1, 3, 64, 17), (8, 63, 3, 64, 5)],
)
def test_a_request_gets_the_same_bits_at_any_place_of_a_batch(
    requests: int, beams: int, heads: int, tokens: int, d_head: int
) -> None:
    """Plain matrix products on a CPU fail this for such shapes."""
    rng = np.random.default_rng(3)
    queries, keys, values, mask = cross_inputs(rng, requests, beams, heads, tokens, d_head)
    whole = cross_attention_reference(queries, keys, values, mask, 1.0).view(requests, beams, -1)
    by_request = queries.view(requests, beams, -1)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(requests))
        moved = cross_attention_reference(
            by_request[order].flatten(0, 1), keys[order], values[order], mask[order], 1.0
        )
        assert torch.equal(moved.view(requests, beams, -1), whole[order])


def test_gradients_are_finite_even_without_any_key() -> None:
    inputs = cross_inputs(np.random.default_rng(4), 2, 3, 2, 7, 3)
    queries = inputs[0].requires_grad_()
    (gradient,) = torch.autograd.grad(
        cross_attention_reference(queries, *inputs[1:], 1.0).sum(), queries
    )
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    *floats, mask = cross_inputs(np.random.default_rng(5), 3, 5, 2, 11, 8)
    queries, keys, values = (x.to(dtype) for x in floats)
    got = cross_attention_reference(queries, keys, values, mask, 1.0)
    wide = cross_attention_reference(queries.float(), keys.float(), values.float(), mask, 1.0)
    assert torch.equal(got, wide.to(dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(3, 2, 7)}, r"keys must be \[requests, heads, tokens, d_head\], got"),
        ({"values": torch.zeros(3, 2, 7, 4)}, r"values must be .* = \[3, 2, 7, 5\], got \[3, 2, 7"),
        ({"key_mask": torch.ones(3, 7)}, "key_mask must be bool, got float32"),
        ({"key_mask": torch.ones(3, 6) > 0}, r"key_mask must be .* = \[3, 7\], got \[3, 6\]"),
        ({"queries": torch.zeros(6, 11)}, r"queries must be \[rows, inner\] = \[6, 10\], got \[6,"),
        ({"queries": torch.zeros(7, 10)}, "queries must be equally many rows per request: 7 of 3"),
        ({"row_scale": torch.ones(5)}, r"row_scale must be \[rows\] = \[6\], got \[5\]"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"queries": torch.zeros(6, 10), "keys": torch.zeros(3, 2, 7, 5)}
    arguments |= {"values": torch.zeros(3, 2, 7, 5), "key_mask": torch.ones(3, 7) > 0, "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        cross_attention_reference(**{**arguments, **change})
