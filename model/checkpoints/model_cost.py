"""The cost of a model before it has weights: their number by stage, and operations per request.

A multiplication and an addition count as one operation each. As usual, only matrix products count;
norms, softmax, activations, look-ups and selection do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from grace.configs.generation import GenerationConfig
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.definition.inputs import JaggedIds, ModelInputs, SequenceEvents
from grace.model.definition.spec import DecoderSpec, ModelSpec

_PAPER_DECODER = DecoderSpec(layers=3, d_model=2048, heads=16, d_head=128, d_ff=512)
_PAPER_VOCAB_SIZES = (512,) * 4
_PAPER_CONTEXT_TOKENS = 128
_PAPER_GFLOPS: dict[tuple[int, ...], float] = {
    (1, 1024, 1024, 1024): 533.0,
    (1, 512, 1024, 1024): 446.0,
}


@dataclass(frozen=True, slots=True)
class BeamCost:
    """The decoder's cost with some beams.

    profile      None for beams of the paper that are no profile of the configuration
    paper_gflop  the paper's number for its model with these beams, else None
    """

    profile: str | None
    beams: tuple[int, ...]
    gflop: float
    paper_gflop: float | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Numbers of weights by stage, and GFLOP per request."""

    feature_weights: int
    encoder_weights: int
    decoder_weights: int
    encoder_gflop: float
    decoder: tuple[BeamCost, ...]

    @property
    def weights(self) -> int:
        return self.feature_weights + self.encoder_weights + self.decoder_weights


def summarize_model(spec: ModelSpec, generation: GenerationConfig) -> ModelSummary:
    """Return a model's costs; for the paper's model, those of equally wide beams come first."""
    generation.require_steps(spec.sid_length)
    model = empty_model(spec)
    features, encoder, decoder = (
        sum(weight.numel() for weight in stage.parameters())
        for stage in (model.features, model.encoder, model.decoder)
    )
    widest = max(generation.profiles[generation.default_profile].beams)
    fixed = _beam_cost(spec, None, (1, *[widest] * (spec.sid_length - 1)))
    costs = [_beam_cost(spec, name, each.beams) for name, each in generation.profiles.items()]
    return ModelSummary(
        feature_weights=features,
        encoder_weights=encoder,
        decoder_weights=decoder,
        encoder_gflop=encoder_flops(spec) / 1e9,
        decoder=tuple(costs if fixed.paper_gflop is None else [fixed, *costs]),
    )


def decoder_flops(spec: ModelSpec, beams: Sequence[int]) -> int:
    """Return the decoder's operations for one request with `beams[t]` rows in step t.

    In products, with I = heads * d_head:

    per request and layer                      2 * T_ctx * d_context * I
    per beam row of step t and layer
        qkv, self_out, cross_q, cross_out      6 * d_model * I
        self-attention over t + 1 tokens       2 * (t + 1) * I
        cross-attention                        2 * T_ctx * I
        feed-forward, relu or gated            (2 or 3) * d_model * d_ff
    per beam row of step t                     d_model * (V_t + extra rows)
    """
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
    """Return the operations of features and encoder for one request with full sequences.

    torch counts them while the model runs on tensors without memory.
    """
    model = empty_model(spec).requires_grad_(False)  # the counter cannot follow unused gradients
    with FlopCounterMode(display=False) as counter:
        model.user_context(_full_request(spec))
    return int(counter.get_total_flops())


def paper_gflops(spec: ModelSpec, beams: Sequence[int]) -> float | None:
    """Return the paper's own number if this is the paper's decoder, else None."""
    is_the_papers = (
        replace(spec.decoder, norm_eps=_PAPER_DECODER.norm_eps, scale_scores=False)
        == _PAPER_DECODER
        and spec.vocab_sizes == _PAPER_VOCAB_SIZES
        and spec.context_tokens == _PAPER_CONTEXT_TOKENS
    )
    return _PAPER_GFLOPS.get(tuple(beams)) if is_the_papers else None


def _beam_cost(spec: ModelSpec, profile: str | None, beams: tuple[int, ...]) -> BeamCost:
    gflop = decoder_flops(spec, beams) / 1e9
    return BeamCost(profile, beams, gflop, paper_gflops(spec, beams))


def _full_request(spec: ModelSpec) -> ModelInputs:
    """Return the shapes of a request with full sequences and one id per bag."""
    return ModelInputs(
        batch=1,
        dense=tuple(torch.empty(1, x.size, device="meta") for x in spec.dense.values()),
        categorical=tuple(_ids(1) for _ in spec.categorical),
        bags=tuple(JaggedIds(_ids(2), _ids(1)) for _ in spec.bags),
        sequences=tuple(
            SequenceEvents(
                offsets=_ids(2),
                sids=_ids(x.max_length, spec.sid_length),
                age_buckets=_ids(x.max_length),
                side=tuple(_ids(x.max_length) for _ in x.side),
            )
            for x in spec.sequences.values()
        ),
    )


def _ids(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")
