"""Arithmetic per request: a multiplication and an addition each count as one operation.

Only matrix products count, as is the custom; norms, softmax, activations, look-ups and selection do
not. I = heads * d_head; all else is named as in model.yaml.

The decoder, by formula, in products (times 2 for operations):

    once per request and layer                                    2 * T_ctx * d_context * I
    per beam row of step t and layer
        qkv, self_out, cross_q, cross_out                         6 * d_model * I
        self-attention over t + 1 tokens                          2 * (t + 1) * I
        cross-attention                                           2 * T_ctx * I
        feed-forward, relu or gated                               (2 or 3) * d_model * d_ff
    per beam row of step t                                        d_model * (V_t + extra rows)

The features and the encoder are counted by torch while they run for one request whose sequences are
full, on tensors without memory.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from grace.model.checkpoints.checkpoint import empty_model
from grace.model.definition.inputs import JaggedIds, ModelInputs, SequenceEvents
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DecoderSpec,
    DenseInput,
    ModelSpec,
    SequenceInput,
)

__all__ = ["decoder_flops", "encoder_flops", "paper_gflops"]

_PAPER_DECODER = DecoderSpec(layers=3, d_model=2048, heads=16, d_head=128, d_ff=512)
_PAPER_VOCAB_SIZES = (512,) * 4
_PAPER_CONTEXT_TOKENS = 128
_PAPER_GFLOPS: dict[tuple[int, ...], float] = {
    (1, 1024, 1024, 1024): 533.0,
    (1, 512, 1024, 1024): 446.0,
}


def decoder_flops(spec: ModelSpec, beams: Sequence[int]) -> int:
    """Of one request: `beams[t]` rows in step t."""
    decoder, context = spec.decoder, spec.context_tokens
    inner = decoder.heads * decoder.d_head
    weights = 6 * decoder.d_model * inner
    weights += (3 if decoder.ffn == "gated_gelu" else 2) * decoder.d_model * decoder.d_ff
    products = decoder.layers * 2 * context * spec.context_dim * inner
    extra = decoder.extra_head_rows or (0,) * spec.sid_length
    for step, (rows, vocab) in enumerate(zip(beams, spec.vocab_sizes, strict=True)):
        attention = 2 * (step + 1) * inner + 2 * context * inner
        head = decoder.d_model * (vocab + extra[step])
        products += rows * (decoder.layers * (weights + attention) + head)
    return 2 * products


def encoder_flops(spec: ModelSpec) -> int:
    """Of one request, features included."""
    model = empty_model(spec).requires_grad_(False)  # the counter cannot follow unused gradients
    with FlopCounterMode(display=False) as counter:
        model.user_context(_full_request(spec))
    return int(counter.get_total_flops())


def paper_gflops(spec: ModelSpec, beams: Sequence[int]) -> float | None:
    """What the paper states for its decoder, if this is it."""
    is_the_papers = (
        replace(spec.decoder, norm_eps=_PAPER_DECODER.norm_eps, scale_scores=False)
        == _PAPER_DECODER
        and spec.vocab_sizes == _PAPER_VOCAB_SIZES
        and spec.context_tokens == _PAPER_CONTEXT_TOKENS
    )
    return _PAPER_GFLOPS.get(tuple(beams)) if is_the_papers else None


def _full_request(spec: ModelSpec) -> ModelInputs:
    """Every sequence at its longest, one id per bag; shapes only."""
    inputs = spec.inputs.values()
    return ModelInputs(
        batch=1,
        dense=tuple(
            torch.empty(1, x.size, device="meta") for x in inputs if isinstance(x, DenseInput)
        ),
        categorical=tuple(_ids(1) for x in inputs if isinstance(x, CategoricalInput)),
        bags=tuple(JaggedIds(_ids(2), _ids(1)) for x in inputs if isinstance(x, BagInput)),
        sequences=tuple(
            SequenceEvents(
                offsets=_ids(2),
                sids=_ids(x.max_length, spec.sid_length),
                age_buckets=_ids(x.max_length),
                side=tuple(_ids(x.max_length) for _ in x.side),
            )
            for x in inputs
            if isinstance(x, SequenceInput)
        ),
    )


def _ids(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")
