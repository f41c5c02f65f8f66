"""The cost of a model before it has weights: their number by stage, and operations per request.

A multiplication and an addition count as one operation each. As usual, only matrix products count;
norms, softmax, activations, look-ups and selection do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.flop_counter import FlopCounterMode

from grace.configs.generation import GenerationConfig
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.definition.causal_spec import CausalModelSpec, CausalSpec
from grace.model.definition.inputs import map_tensors
from grace.model.definition.model import Model
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_spec import DecoderSpec, EncoderDecoderSpec
from grace.model.engine.feature_reader import read_inputs

_PAPER_DECODER = DecoderSpec(3, 2048, heads=16, d_head=128, d_ff=512, scale_scores=True)
_PAPER_SIZES = ((512,) * 4, 128)  # vocabularies, context tokens
_PAPER_GFLOPS: dict[tuple[int, ...], float] = {
    (1, 1024, 1024, 1024): 533.0,
    (1, 512, 1024, 1024): 446.0,
}


@dataclass(frozen=True, slots=True)
class BeamCost:
    profile: str | None  # None for beams of the paper that are no profile of the configuration
    beams: tuple[int, ...]
    gflop: float
    paper_gflop: float | None  # the paper's number for its model with these beams, else None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    feature_weights: int
    encoder_weights: int
    decoder_weights: int
    encoder_gflop: float  # for a causal model, to read a prompt of max_tokens
    decoder: tuple[BeamCost, ...]

    @property
    def weights(self) -> int:
        return self.feature_weights + self.encoder_weights + self.decoder_weights


def summarize_model(spec: ModelSpec, generation: GenerationConfig) -> ModelSummary:
    """Return a model's costs with every profile's beams; the paper's model has the paper's, too."""
    generation.require_steps(spec.sid_length)
    model = empty_model(spec)
    features, encoder, decoder = (
        sum(weight.numel() for weight in stage.parameters())
        for stage in (model.features, model.encoder, model.decoder)
    )
    paper = {}
    if isinstance(spec, EncoderDecoderSpec) and spec.decoder == _PAPER_DECODER:
        paper = _PAPER_GFLOPS if (spec.vocab_sizes, spec.context_tokens) == _PAPER_SIZES else {}
    beams_of = {name: profile.beams for name, profile in generation.profiles.items()}
    others = [(None, beams) for beams in paper if beams not in beams_of.values()]
    return ModelSummary(
        feature_weights=features,
        encoder_weights=encoder,
        decoder_weights=decoder,
        encoder_gflop=encoder_flops(spec) / 1e9,
        decoder=tuple(
            BeamCost(name, beams, decoder_flops(spec, beams) / 1e9, paper.get(beams))
            for name, beams in (*others, *beams_of.items())
        ),
    )


def decoder_flops(spec: ModelSpec, beams: Sequence[int]) -> int:
    """Return the decoder's operations for one request with `beams[t]` rows in step t.

    For the T5 family, in products, with I = heads * d_head:

    per request and layer                      2 * T_ctx * d_context * I
    per beam row of step t and layer
        qkv, self_out, cross_q, cross_out      6 * d_model * I
        self-attention over t + 1 tokens       2 * (t + 1) * I
        cross-attention                        2 * T_ctx * I
        feed-forward, relu or gated            (2 or 3) * d_model * d_ff
    per beam row of step t                     d_model * (V_t + extra rows)
    """
    if isinstance(spec, CausalModelSpec):
        return _steps_flops(spec, beams)
    assert isinstance(spec, EncoderDecoderSpec)
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
    """Return a request's operations of features and encoder, counted without memory by torch."""
    if isinstance(spec, CausalModelSpec):
        return _prompt_flops(spec)
    model = empty_model(spec).requires_grad_(False)  # the counter cannot follow unused gradients
    assert isinstance(model, Model)
    inputs = map_tensors(read_inputs(spec, [], 1), lambda tensor: tensor.to("meta"))
    with FlopCounterMode(display=False) as counter:
        model.user_context(inputs)
    return int(counter.get_total_flops())


def _steps_flops(spec: CausalModelSpec, beams: Sequence[int]) -> int:
    """Return the operations of a causal decoder's steps, with prompts of max_tokens.

    Step 0 only multiplies the prompt's last token by the head. The head has the whole vocabulary
    if the normaliser does.
    """
    causal, products = spec.causal, 0
    for step, (rows, codes) in enumerate(zip(beams, spec.vocab_sizes, strict=True)):
        keys = spec.prompt.max_tokens + step
        layers = 0 if step == 0 else causal.layers * (causal.layer_weights + keys * _pair(causal))
        head = causal.d_model * (causal.num_tokens if spec.normalizer == "all" else codes)
        products += rows * (layers + head)
    return 2 * products


def _prompt_flops(spec: CausalModelSpec) -> int:
    """Return the operations that read a prompt of max_tokens. Its tokens attend to earlier ones.

    In the last layer, only the prompt's last token needs more than its keys and values.
    """
    causal, tokens = spec.causal, spec.prompt.max_tokens
    layer = tokens * causal.layer_weights + tokens * (tokens + 1) // 2 * _pair(causal)
    keys_and_values = causal.d_model * 2 * causal.kv_heads * causal.d_head
    last = causal.layer_weights + (tokens - 1) * keys_and_values + tokens * _pair(causal)
    return 2 * ((causal.layers - 1) * layer + last)


def _pair(causal: CausalSpec) -> int:
    """Return the number of products of a query, a key and a value, in all heads of a layer."""
    return 2 * causal.heads * causal.d_head
