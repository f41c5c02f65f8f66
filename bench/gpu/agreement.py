"""No number without it: what is timed must agree with its definition, in the same run."""

import torch
from torch import Tensor

from grace.configs.errors import DeviceError
from grace.kernels import REFERENCE, AdmissionSlot, Candidates, DecodeIndex, UserTensors

__all__ = [
    "check_admission",
    "require_candidates",
    "require_close",
    "require_equal",
    "require_overlap",
]

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Of the largest value: products of half precision round at the size of their terms."""


def require_close(what: str, got: Tensor, expected: Tensor) -> None:
    scale = max(1.0, float(expected.float().abs().max()))
    worst = float((got.float() - expected.float()).abs().max())
    allowed = _TOLERANCE[got.dtype] * scale
    if not worst <= allowed:  # NaN, too, is no agreement
        raise DeviceError(
            f"{what}: differs from its definition by {worst:.3g}, {allowed:.3g} is allowed: "
            "it is wrong, and was not measured; run the gpu tests of kernels"
        )


def require_equal(what: str, got: Tensor, expected: Tensor) -> None:
    if not torch.equal(got, expected):
        raise DeviceError(
            f"{what}: is not equal to its definition: it is wrong, and was not measured; "
            "run the gpu tests of kernels"
        )


def require_overlap(what: str, share: float, least: float) -> None:
    if not share >= least:
        raise DeviceError(
            f"{what}: {share:.1%} of the SIDs are those of its definition, {least:.0%} are "
            "expected: it is wrong, and was not measured; run the gpu tests of model"
        )


def check_admission(
    slot: AdmissionSlot, nodes: Tensor, users: UserTensors, index: DecodeIndex
) -> int:
    """`slot` points at these users and index. How many children it admits."""
    expected = REFERENCE.admit_children(nodes, users, index)
    require_candidates(slot.admit_children(nodes), expected)
    return len(expected.tokens)


def require_candidates(got: Candidates, expected: Candidates) -> None:
    one, other = got.packed(), expected.packed()
    for name in ("offsets", "tokens", "nodes"):
        require_equal(f"admission, {name}", getattr(one, name), getattr(other, name))
