"""The recipe of a training: the model, how to train it, and the beams that measure its recall.

Catalogue and log give every number: see `default_recipe`. A YAML file changes some of them:

    model:      like model.yaml; sid_space, vocab_sizes and t5's token numbers are the data's
    training:   {steps: 1500, batch: 256, ...}
    generation: {max_batch: 16, profiles: {full: {beams: [1, 64, 64, 64], num_sids: 64}}}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.machine import available_cores
from grace.configs.sections import load_section
from grace.configs.training import TrainingConfig
from grace.configs.yaml_loader import read_yaml
from grace.index.snapshot import Snapshot
from grace.model.definition.spec import ModelSpec, parse_inputs, parse_spec
from grace.model.train.interactions import Interactions

_SECTIONS = ("model", "training", "generation")
_HISTORY = "clicks"
_PASSES = 3  # over the examples, as long as that is within these steps
_FEWEST_STEPS, _MOST_STEPS = 500, 20_000
_LONG_HISTORY = 90  # percentile of the users' events: few histories are longer


@dataclass(frozen=True, slots=True)
class Recipe:
    model: ModelSpec
    training: TrainingConfig
    generation: GenerationConfig

    def to_json(self) -> dict[str, Any]:
        """Return the values of a file that makes an equal recipe for the same data."""
        return {
            "model": self.model.to_json(),
            "training": asdict(self.training),
            "generation": asdict(self.generation),
        }


@dataclass(frozen=True, slots=True)
class _Size:
    """A model for catalogues of at most `sids` SIDs. docs/training.md shows the table."""

    sids: float
    d_model: int
    heads: int
    d_ff: int
    encoder_layers: int
    decoder_layers: int
    history: int  # events at most
    batch: int
    learning_rate: float
    beams: int
    threads: int  # at most; more help a small model little


_SIZES = (
    _Size(20_000, 64, 4, 192, 1, 2, 12, 128, 0.014, 64, 1),
    _Size(500_000, 128, 8, 384, 2, 2, 16, 256, 0.006, 128, 16),
    _Size(float("inf"), 256, 8, 768, 2, 3, 20, 512, 0.003, 128, 16),
)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """What a YAML file says; the data fill in the rest."""

    path: Path | None
    sections: Mapping[str, Mapping[str, Any]]

    @property
    def side_columns(self) -> tuple[str, ...]:
        """Return the columns of ids that the model reads from the log."""
        if "inputs" not in self.sections["model"]:
            return ()
        try:
            inputs = parse_inputs(self.sections["model"]["inputs"])
        except ConfigError as error:
            raise ConfigError(f"{self.path}: model: {error}") from None
        return tuple(name for each in inputs.values() for name in getattr(each, "side", ()))


def read_recipe(path: Path | None) -> RecipeFile:
    """Read a recipe, or without a path an empty one. Unknown sections are refused."""
    values = {} if path is None else read_yaml(path)
    for name, section in values.items():
        if name not in _SECTIONS:
            raise ConfigError(f"{path}: unknown key {name!r}; known: {', '.join(_SECTIONS)}")
        if not isinstance(section, Mapping):
            raise ConfigError(f"{path}: {name}: expected keys with values; add some or remove it")
    return RecipeFile(path, {name: values.get(name, {}) for name in _SECTIONS})  # type: ignore[misc]


def recipe_for(written: RecipeFile, catalogue: Snapshot, log: Interactions) -> Recipe:
    """Return the checked recipe: what the file says, and otherwise the default for these data."""
    default = default_recipe(catalogue, log)
    source = "the default recipe" if written.path is None else str(written.path)
    facts: dict[str, Any] = {
        "sid_space": catalogue.facts.sid_space,
        "vocab_sizes": list(catalogue.trie.vocab_sizes),
    }
    model = {**default["model"], **facts, **written.sections["model"]}
    for name, fact in facts.items():
        if model[name] != fact:
            raise ConfigError(
                f"{source}: model.{name} is {model[name]}, the data's is {fact}; leave it out, or "
                "train on other data"
            )
    spec = parse_spec(_with_tokens(model, facts["vocab_sizes"]), f"{source}: model")
    training = {**default["training"], **written.sections["training"]}
    config = load_section(TrainingConfig, training, f"{source}: training")
    beams = written.sections["generation"] or default["generation"]
    generation = load_section(GenerationConfig, beams, f"{source}: generation")
    try:
        generation.require_steps(spec.sid_length)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return Recipe(spec, config, generation)


def default_recipe(catalogue: Snapshot, log: Interactions) -> dict[str, Any]:
    """Return a T5 model whose size follows the catalogue; its history and steps follow the log."""
    trie = catalogue.trie
    size = next(size for size in _SIZES if trie.num_leaves <= size.sids)
    events = np.diff(log.offsets) - 1
    history = max(1, min(size.history, int(np.percentile(events, _LONG_HISTORY))))
    steps = round(_PASSES * len(log.examples()) / size.batch)
    steps = max(_FEWEST_STEPS, min(_MOST_STEPS, steps))
    shared = {
        "d_model": size.d_model,
        "heads": size.heads,
        "d_head": size.d_model // size.heads,
        "d_ff": size.d_ff,
        "scale_scores": True,
    }
    return {
        "model": {
            "inputs": {_HISTORY: {"kind": "sequence", "max_length": history}},
            "encoder": {"t5": {"layers": size.encoder_layers, **shared}},
            "decoder": {"layers": size.decoder_layers, **shared},
        },
        "training": {
            "steps": steps,
            "batch": size.batch,
            "learning_rate": size.learning_rate,
            "warmup_steps": min(200, steps // 10),
            "threads": min(size.threads, available_cores()),
        },
        "generation": {
            "max_batch": 16,
            "profiles": {
                name: _profile(trie.sid_length, min(width, trie.num_leaves))
                for name, width in (("full", size.beams), ("reduced", size.beams // 4))
            },
        },
    }


def _profile(sid_length: int, width: int) -> dict[str, Any]:
    return {"beams": [1, *[width] * (sid_length - 1)], "num_sids": width}


def _with_tokens(model: Mapping[str, Any], vocab_sizes: list[int]) -> dict[str, Any]:
    """Number the tokens of a t5 encoder, unless it does: 0 ends the history, then each position."""
    encoder, inputs = model.get("encoder"), model.get("inputs")
    t5 = encoder.get("t5") if isinstance(encoder, Mapping) else None
    if not isinstance(t5, Mapping):
        return dict(model)
    numbered = dict(t5)
    if not {"token_offsets", "num_tokens", "eos_token", "prefix_tokens"} & t5.keys():
        first = np.cumsum([1, *vocab_sizes]).tolist()
        numbered |= {"token_offsets": first[:-1], "num_tokens": first[-1], "eos_token": 0}
    if isinstance(inputs, Mapping) and len(inputs) == 1:
        numbered.setdefault("history", next(iter(inputs)))
    return {**model, "encoder": {**encoder, "t5": numbered}}
