"""The precisions of the fast engines, and what fp8 needs in every family."""

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

import torch

from grace.configs.errors import ConfigError
from grace.configs.options import Fp8Product
from grace.kernels.products.fp8_products import ORDERED

Precision: TypeAlias = Literal["fp32", "bf16", "fp8"]

PRECISIONS: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}
"""The type of all tensors that are not rounded; the weights of each family say what fp8 rounds."""


def products_in_fp8(
    own: tuple[Fp8Product, ...], precision: Precision, kept: Collection[Fp8Product]
) -> tuple[Fp8Product, ...]:
    """Return a decoder's own products without the kept ones; precision fp8 needs one at least."""
    if precision != "fp8":
        return ()
    names = tuple(x for x in own if x not in kept)
    if not names:
        raise ConfigError(
            f"fp8_keep: {', '.join(kept)}: leaves no product of this decoder in fp8; keep fewer, "
            "or use bf16"
        )
    return names


def require_whole_tiles(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size % ORDERED:
            other = ", or fp8_keep: [feed_forward]" if name == "d_ff" else ""
            raise ConfigError(
                f"precision: fp8 needs a decoder whose {name} is a multiple of {ORDERED}, the "
                f"checkpoint's is {size}; use bf16{other}"
            )
