"""The choice of a generation by family and device. Only this file imports every family."""

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.kernels import Ops
from grace.model.definition.model import AnyModel, CausalModel, Model
from grace.model.engine.causal.generation import CausalGeneration
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.feature_stage import FastStage, FeatureStage, PromptStage
from grace.model.engine.generation import EngineSettings, Generation, PlainGeneration
from grace.model.engine.graph_generation import GraphGeneration


def generation_for(
    model: AnyModel,
    ops: Ops,
    settings: EngineSettings,
    config: GenerationConfig,
    stage: FeatureStage,
) -> Generation:
    """Return the generation for the features of a stage. On a GPU, record all its graphs."""
    sizes = config.batch_buckets, config.profiles.values()
    if isinstance(stage, FastStage) and isinstance(model, Model):
        return GraphGeneration(FastGeneration(model, ops, settings), stage, *sizes)
    if isinstance(stage, PromptStage) and isinstance(model, CausalModel):
        return GraphGeneration(CausalGeneration(model, ops, settings, config), stage, *sizes)
    precision, device = settings.precision, model.decoder.device
    if precision != "fp32":
        raise ConfigError(f"precision: {precision} needs a GPU; on device {device} use fp32")
    return PlainGeneration(model, ops)
