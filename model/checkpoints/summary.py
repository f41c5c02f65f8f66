"""What a model weighs and computes, before any weight exists."""

from dataclasses import dataclass

from grace.configs.generation import GenerationConfig
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.flops import decoder_flops, encoder_flops, paper_gflops
from grace.model.definition.spec import ModelSpec

__all__ = ["BeamCost", "ModelSummary", "summarize_model"]


@dataclass(frozen=True, slots=True)
class BeamCost:
    """`paper_gflop` is what the paper states for its model with these beams, None for others."""

    profile: str | None  # None: no profile of the configuration, but beams that the paper tells of
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
    """Each profile; before them, for the paper's model, its largest beam in every step."""
    generation.require_steps(spec.sid_length)
    widest = max(generation.profiles[generation.default_profile].beams)
    fixed = _beam_cost(spec, None, (1, *[widest] * (spec.sid_length - 1)))
    costs = [_beam_cost(spec, name, of.beams) for name, of in generation.profiles.items()]
    return tuple(costs if fixed.paper_gflop is None else [fixed, *costs])


def _beam_cost(spec: ModelSpec, profile: str | None, beams: tuple[int, ...]) -> BeamCost:
    gflop = decoder_flops(spec, beams) / 1e9
    return BeamCost(profile, beams, gflop, paper_gflops(spec, beams))
