"""A training configuration: the model, how it is trained, and the beams it is judged with.

model:      as model.yaml (model.spec); sid_space and vocab_sizes may be left to the data
training:   {steps: 1500, batch: 256, ...}
generation: {max_batch: 16, profiles: {full: {beams: [1, 64, 64, 64], num_sids: 64}}}
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.sections import load_section, read_sections
from grace.configs.training import TrainingConfig
from grace.index.snapshot import Snapshot
from grace.model.definition.spec import ModelSpec, parse_spec

__all__ = ["Recipe", "load_recipe"]

_SECTIONS = ("model", "training", "generation")


@dataclass(frozen=True, slots=True)
class Recipe:
    model: ModelSpec
    training: TrainingConfig
    generation: GenerationConfig


def load_recipe(path: Path, catalogue: Snapshot) -> Recipe:
    """The recipe in a file, for the SIDs of a catalogue."""
    sections = read_sections(path, _SECTIONS)
    facts: dict[str, Any] = {
        "sid_space": catalogue.facts.sid_space,
        "vocab_sizes": list(catalogue.trie.vocab_sizes),
    }
    model = {**facts, **sections["model"]}
    for name, fact in facts.items():
        if model[name] != fact:
            raise ConfigError(
                f"{path}: model.{name} is {model[name]}, the data's is {fact}; leave it out, or "
                "train on other data"
            )
    spec = parse_spec(model, f"{path}: model")
    generation = load_section(GenerationConfig, sections["generation"], f"{path}: generation")
    try:
        generation.require_steps(spec.sid_length)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    training = load_section(TrainingConfig, sections["training"], f"{path}: training")
    return Recipe(spec, training, generation)
