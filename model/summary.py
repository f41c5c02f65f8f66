"""What a model weighs and computes, before any weight exists."""

from dataclasses import dataclass

from configs.generation import BeamProfile, GenerationConfig
from model.checkpoint import empty_model
from model.flops import decoder_flops, encoder_flops, paper_gflops
from model.spec import ModelSpec

__all__ = ["BeamCost", "ModelSummary", "summarize_model"]

_FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class BeamCost:
    """`paper_gflop` is what the paper states for its model with these beams, None for others."""

    profile: str
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
    model = empty_model(spec)
    features, encoder, decoder = (
        sum(weight.numel() for weight in stage.parameters())
        for stage in (model.features, model.encoder, model.decoder)
    )
    return ModelSummary(
        feature_weights=features,
        encoder_weights=encoder,
        decoder_weights=decoder,
        encoder_gflop=encoder_flops(spec) / 1e9,
        decoder=_beam_costs(spec, generation),
    )


def _beam_costs(spec: ModelSpec, generation: GenerationConfig) -> tuple[BeamCost, ...]:
    """The default profile's largest beam in every step, then each profile."""
    generation.require_steps(spec.sid_length)
    widest = max(generation.profiles[generation.default_profile].beams)
    fixed = BeamProfile((1, *[widest] * (spec.sid_length - 1)), widest)
    return tuple(
        BeamCost(
            name,
            profile.beams,
            decoder_flops(spec, profile.beams) / 1e9,
            paper_gflops(spec, profile.beams),
        )
        for name, profile in {_FIXED: fixed, **generation.profiles}.items()
    )
