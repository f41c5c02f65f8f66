"""Every Triton body, interpreted, against its reference: prints the differences as JSON.

    TRITON_INTERPRET=1 python -m support.interpreted_triton

A process chooses the interpreter before it imports Triton, so this runs in its own.
"""

import json

import torch

from grace.kernels.ops_cuda import CUDA_DECODER
from support.agreement import TRITON, calls_in_turns, decoder_calls, difference, encoder_calls
from support.encoder_cases import INTERFORMER, T5
from support.encoder_op_cases import encoder_difference


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
