"""Every Triton body, interpreted, against its reference: prints the differences as JSON.

    TRITON_INTERPRET=1 python -m support.interpreted_triton

A process chooses the interpreter before it imports Triton, so this runs in its own.
"""

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from grace.bench.rungs.attention import DenseCache, append, attend_sdpa
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced
from grace.kernels.ops_cuda import CUDA_DECODER
from support.agreement import (
    TRITON,
    calls_in_turns,
    decoder_calls,
    difference,
    encoder_calls,
)
from support.encoder_cases import INTERFORMER, T5
from support.encoder_op_cases import encoder_difference


def dense_inputs(
    seed: int, rows: int, length: int, heads: int, d_head: int, step: int, dtype: torch.dtype
) -> tuple[Tensor, DenseCache]:
    """Return qkv, and a cache with more rows than qkv, NaN where no kernel may read."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    caches = [normal(length, rows + 3, heads, d_head) for _ in range(2)]
    for cache in caches:
        cache[step:], cache[:, rows:] = torch.nan, torch.nan
    return normal(rows, 3, heads, d_head), DenseCache(*caches)


def dense_differences() -> Iterator[str | None]:
    """Yield how each attention of the rungs in Triton differs from the plain one, or None."""
    for dtype, step, rows, heads, d_head, tile in (
        (torch.float32, 0, 5, 3, 8, 16),
        (torch.float32, 1, 17, 2, 16, 16),
        (torch.float32, 2, 33, 1, 20, 32),
        (torch.float16, 3, 31, 2, 16, 16),
        (torch.float16, 2, 17, 1, 20, 32),
    ):
        for fused in (False, True):
            qkv, cache = dense_inputs(step, rows, 4, heads, d_head, step, dtype)
            plain = DenseCache(
                *(x.to(torch.float32, copy=True) for x in (cache.keys, cache.values))
            )
            if not fused:
                append(qkv, cache, step)
            append(qkv.float(), plain, step)
            got = attend_coalesced(qkv, cache, step, 0.4, Tile(tile, 4), fused=fused)
            expected = attend_sdpa(qkv.float(), plain, step, 0.4)
            tolerance = 1e-5 if dtype is torch.float32 else 2e-3
            close = torch.allclose(got.float(), expected, rtol=tolerance, atol=tolerance)
            written = all(
                torch.equal(part[step, :rows], qkv[:, new]) and part[step, rows:].isnan().all()
                for new, part in ((1, cache.keys), (2, cache.values))
            )
            name = f"{'fused' if fused else 'coalesced'}-step={step}-rows={rows}"
            yield None if close and written else f"{name}: close {close}, written {written}"


def main() -> None:
    torch.use_deterministic_algorithms(True)  # memory comes filled with NaN
    encoders = {
        name: encoder_difference(spec, "cpu", torch.float32)
        for name, spec in (("interformer", INTERFORMER), ("t5", T5))
    }
    # The interpreter multiplies bfloat16 matrices wrongly, so float16 replaces it.
    float32, float16 = (torch.float32,), (torch.float16,)
    low = [*decoder_calls(CUDA_DECODER, TRITON, float16), *calls_in_turns(float16)]
    full = [*decoder_calls(CUDA_DECODER, TRITON, float32), *calls_in_turns(float32)]
    of_decoder = [
        call for calls, own in ((low, True), (full, False)) for call in calls if call.low is own
    ]
    of_encoders = (*encoder_calls(float32), *encoder_calls(float16, most=1))
    found = [[difference(call, "cpu") for call in group] for group in (of_decoder, of_encoders)]
    found.append(list(dense_differences()))
    print(
        json.dumps(
            {
                "calls": [len(group) for group in found],
                "different": [text for group in found for text in group if text],
                "encoders": encoders,
            }
        )
    )


if __name__ == "__main__":
    main()
