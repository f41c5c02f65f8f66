"""Every Triton body, interpreted, against its reference: prints the differences as JSON.

    TRITON_INTERPRET=1 python -m support.interpreted_triton

A process chooses the interpreter before it imports Triton, so this runs in its own.
"""

import json

import torch

from support.encoder_cases import INTERFORMER, T5
from support.encoder_op_cases import encoder_calls, encoder_difference
from support.triton_agreement import calls, difference


def main() -> None:
    torch.use_deterministic_algorithms(True)  # memory comes filled with NaN
    encoders = {
        name: encoder_difference(spec, "cpu", torch.float32)
        for name, spec in (("interformer", INTERFORMER), ("t5", T5))
    }
    # The interpreter multiplies bfloat16 matrices wrongly, so float16 replaces it.
    low = [call for call in calls((torch.float16,)) if "bfloat16" in call.name or call.blocked]
    full = [call for call in calls((torch.float32,)) if not call.blocked]
    of_encoders = (*encoder_calls((torch.float32,)), *encoder_calls((torch.float16,), most=2))
    found = [[difference(call, "cpu") for call in group] for group in ((*full, *low), of_encoders)]
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
