"""The encoders: features in, user context `[B, T_ctx, d]` out. A checkpoint's model.yaml names one.

`t5` reads a history of SIDs as tokens, as TIGER does; `interformer` reads every kind of input.
"""

from grace.model.definition.encoders.interformer import InterFormerEncoder
from grace.model.definition.encoders.t5 import T5Encoder

__all__ = ["InterFormerEncoder", "T5Encoder"]
