"""The recipe of a training: the model, how to train it, and the beams that measure its recall.

Catalogue and log give every number: see `default_recipe`. A YAML file changes some of them:

    model:      like model.yaml; sid_space, vocab_sizes and t5's token numbers are the data's
    training:   {steps: 1500, batch: 256, ...}
    generation: {max_batch: 16, profiles: {full: {beams: [1, 64, 64, 64], num_sids: 64}}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig, profile_of
from grace.configs.machine import available_cores
from grace.configs.options import Option
from grace.configs.sections import Section, load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.snapshot import Snapshot
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.spec import InputSpec
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.train.interactions import Interactions

RECIPE_FILE = "recipe.yaml"  # in the folder of a trained checkpoint

_SECTIONS = ("model", "training", "generation")
_FACTS = ("sid_space", "vocab_sizes")
_HISTORY = "clicks"
_PASSES = 3  # over the examples, as long as that is within these steps
_FEWEST_STEPS, _MOST_STEPS = 500, 20_000
_LONG_HISTORY = 90  # percentile of the users' events: few histories are longer


@dataclass(frozen=True, slots=True)
class TrainingConfig(Section):
    """AdamW; the learning rate rises for `warmup_steps`, then falls to zero as a cosine."""

    steps: Annotated[int, Option(least=1)]
    batch: Annotated[int, Option(least=1)] = 256
    learning_rate: Annotated[float, Option(above=0)] = 3e-3
    warmup_steps: Annotated[int, Option(least=0)] = 50
    weight_decay: Annotated[float, Option("of matrices; gains and biases have none", least=0)] = (
        0.01
    )
    clip_norm: Annotated[float, Option(above=0)] = 1.0
    dropout: Annotated[float, Option("share of zeros after each layer", least=0, most=0.9)] = 0.0
    event_dropout: Annotated[float, Option("share of old events left out", least=0, most=0.9)] = 0.0
    label_smoothing: Annotated[float, Option(least=0, most=0.9)] = 0.0
    validate_every: Annotated[int, Option("steps; 0 never validates", least=0)] = 0
    patience: Annotated[int, Option("validations without a better one", least=1)] = 5
    threads: Annotated[int, Option("more change the order of sums", least=1)] = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    model: EncoderDecoderSpec
    training: TrainingConfig
    generation: GenerationConfig

    def __post_init__(self) -> None:
        self.generation.require_steps(self.model.sid_length)

    def to_json(self) -> dict[str, Any]:
        """Return a file's values, without facts of the data, so that it also fits other data."""
        model = {k: v for k, v in self.model.to_json().items() if k not in _FACTS}
        t5 = model["encoder"].get("t5")
        if t5 is not None:
            derived = _tokens(self.model.vocab_sizes)
            if all(t5[name] == value for name, value in derived.items()):
                kept = {k: v for k, v in t5.items() if k not in derived}
                model["encoder"] = {**model["encoder"], "t5": kept}
        return {
            "model": model,
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
    cpu_steps: int = 0  # at most on a CPU, so that training takes minutes


_SIZES = (
    _Size(20_000, 64, 4, 192, 1, 2, 12, 128, 0.014, 64, 1, 4000),
    _Size(500_000, 96, 6, 288, 1, 2, 12, 256, 0.01, 128, 4, 600),
    _Size(float("inf"), 256, 8, 768, 2, 3, 20, 512, 0.003, 128, 16),
)
_CPU_SIZES = (_SIZES[0], replace(_SIZES[1], sids=float("inf")))


@dataclass(frozen=True, slots=True)
class _Inputs:
    inputs: dict[str, InputSpec]


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """The content of a YAML file; the data fill in the rest."""

    path: Path | None
    sections: Mapping[str, Mapping[str, Any]]

    def continuing(self, checkpoint: Path, spec: EncoderDecoderSpec) -> "RecipeFile":
        """Return this recipe with the model of a checkpoint."""
        if self.sections["model"]:
            raise ConfigError(f"{self.path}: model: the checkpoint of --from has one; remove it")
        model = {**spec.to_json(), "vocab_sizes": list(spec.vocab_sizes)}
        return RecipeFile(self.path or checkpoint, {**self.sections, "model": model})

    @property
    def side_columns(self) -> tuple[str, ...]:
        """Return the columns of ids that the model reads from the log."""
        inputs = self.sections["model"].get("inputs", {})
        declared = load_section(_Inputs, {"inputs": inputs}, f"{self.path}: model").inputs
        return tuple(name for each in declared.values() for name in getattr(each, "side", ()))


def read_recipe(path: Path | None) -> RecipeFile:
    """Read a recipe, or without a path an empty one. Unknown sections are refused."""
    values = {} if path is None else read_yaml(path)
    for name, section in values.items():
        if name not in _SECTIONS:
            raise ConfigError(f"{path}: unknown key {name!r}; known: {', '.join(_SECTIONS)}")
        if not isinstance(section, Mapping):
            raise ConfigError(f"{path}: {name}: expected keys with values; add some or remove it")
        if CausalModelSpec.describes(section):
            fault = "train it elsewhere, then run `grace import-causal`"
            raise ConfigError(f"{path}: {name}: is a causal model; {fault}")
    return RecipeFile(path, {name: values.get(name, {}) for name in _SECTIONS})  # type: ignore[misc]


def recipe_for(
    written: RecipeFile, catalogue: Snapshot, log: Interactions, device: str = "cpu"
) -> Recipe:
    """Return the checked recipe: the file's, or else the default for these data on cpu or cuda."""
    default = default_recipe(catalogue, log, device)
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
    sections = {
        "model": _with_tokens(model, facts["vocab_sizes"]),
        "training": {**default["training"], **written.sections["training"]},
        "generation": written.sections["generation"] or default["generation"],
    }
    return load_section(Recipe, sections, source)


def default_recipe(catalogue: Snapshot, log: Interactions, device: str) -> dict[str, Any]:
    """Return a T5 recipe by catalogue and log. On a CPU, its limits keep training to minutes."""
    trie, on_cpu = catalogue.trie, device == "cpu"
    sizes = _CPU_SIZES if on_cpu else _SIZES
    size = next(size for size in sizes if trie.num_leaves <= size.sids)
    events = np.diff(log.offsets) - 1
    history = max(1, min(size.history, int(np.percentile(events, _LONG_HISTORY))))
    steps = round(_PASSES * len(log.examples()) / size.batch)
    steps = max(_FEWEST_STEPS, min(size.cpu_steps if on_cpu else _MOST_STEPS, steps))
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
                name: asdict(profile_of(trie.vocab_sizes, min(width, trie.num_leaves)))
                for name, width in (("full", size.beams), ("reduced", size.beams // 4))
            },
        },
    }


def _tokens(vocab_sizes: Sequence[int]) -> dict[str, Any]:
    """Number a t5 encoder's tokens: 0 ends the history, then come those of each position."""
    first = np.cumsum([1, *vocab_sizes]).tolist()
    return {
        "num_tokens": first[-1],
        "token_offsets": tuple(first[:-1]),
        "prefix_tokens": (),
        "eos_token": 0,
    }


def _with_tokens(model: Mapping[str, Any], vocab_sizes: list[int]) -> dict[str, Any]:
    """Complete a t5 encoder: its tokens, unless it numbers them, and its only history."""
    encoder, inputs = model.get("encoder"), model.get("inputs")
    if not isinstance(encoder, Mapping) or not isinstance(t5 := encoder.get("t5"), Mapping):
        return dict(model)
    numbered = dict(t5)
    derived = _tokens(vocab_sizes)
    if not derived.keys() & t5.keys():
        numbered |= derived
    if isinstance(inputs, Mapping) and len(inputs) == 1:
        numbered.setdefault("history", next(iter(inputs)))
    return {**model, "encoder": {**encoder, "t5": numbered}}
