"""A checkpoint: a folder of two files, which never change once it has its name."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
import yaml

from grace.configs.errors import CheckpointError
from grace.configs.regular_files import open_regular, require_new, whole_folder
from grace.index.snapshot import Snapshot
from grace.kernels import require_device
from grace.model.checkpoints.folder import (
    MODEL_YAML,
    WEIGHTS,
    load_spec,
    require_files,
    require_sids,
)
from grace.model.checkpoints.weights_file import open_weights, write_weights
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.model import AnyModel, Model, model_of
from grace.model.definition.spec import ModelSpec

CPU = torch.device("cpu")

_ID_DIGITS = 16


def save_checkpoint(model: AnyModel, folder: Path) -> str:
    """Write the model to a new or empty folder, whole or not at all. Return its id."""
    require_new(folder)
    with whole_folder(folder) as partial:
        write_yaml(partial / MODEL_YAML, model.spec.to_json())
        write_weights(partial / WEIGHTS, model.state_dict())
    return checkpoint_id(folder)


def load_checkpoint(
    folder: Path, device: torch.device = CPU, features: torch.dtype = torch.float32
) -> AnyModel:
    """Read and check a model for inference: every weight is there, of its shape, and finite.

    features  the type of the features stage's weights, whose tables are most of a large model. The
              others are float32, but those of a causal model on a GPU keep their stored type.
              All must fit this type, too: an engine may compute in it
    """
    require_device(device)
    require_files(folder)
    spec = load_spec(folder / MODEL_YAML)
    with open_weights(folder / WEIGHTS) as weights:
        model = empty_model(spec, str(folder / MODEL_YAML))
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        for name, shape in shapes.items():
            weights.require_shape(name, shape, MODEL_YAML)
        for name in sorted(weights.shapes.keys() - shapes.keys()):
            fault = f"unexpected tensor {name!r}: {MODEL_YAML} describes no such weight"
            raise weights.fault(fault)
        # A causal model is large, and its engine folds it weight by weight.
        as_stored = isinstance(spec, CausalModelSpec) and features != torch.float32
        rest = None if as_stored else torch.float32
        state = {
            name: weights.read(
                name, features if name.startswith("features.") else rest, features
            ).to(device)
            for name in shapes
        }
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def load_encoder_decoder(folder: Path, device: torch.device = CPU) -> Model:
    """Read a model of the T5 family, for callers that train or need an encoder."""
    model = load_checkpoint(folder, device)
    if not isinstance(model, Model):
        fault = "is a causal model; give one of the T5 family, which has an encoder"
        raise CheckpointError(str(folder / MODEL_YAML), fault)
    return model


def checkpoint_id(folder: Path) -> str:
    """Return 16 hex digits of the XXH3-128 of both files' XXH3-128 digests."""
    digest = xxhash.xxh3_128()
    for path in (folder / MODEL_YAML, folder / WEIGHTS):
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                digest.update(hashlib.file_digest(file, xxhash.xxh3_128).digest())
        except OSError as error:
            raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:_ID_DIGITS]


def require_match(spec: ModelSpec, snapshot: Snapshot, folder: Path | None = None) -> None:
    """Check that the SIDs of a model and a snapshot mean the same. Errors start with `folder`."""
    file = MODEL_YAML if folder is None else str(folder / MODEL_YAML)
    require_sids(spec, file, snapshot.facts.sid_space, snapshot.trie.vocab_sizes)


def empty_model(spec: ModelSpec, source: str = MODEL_YAML) -> AnyModel:
    """Return the model without memory for its weights, on the device `meta`."""
    try:
        with torch.device("meta"):
            return model_of(spec)
    except (RuntimeError, OverflowError, TypeError) as error:
        fault = str(error).splitlines()[0]
        raise CheckpointError(source, f"describes tensors that cannot be: {fault}") from None


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    text = yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100
    )
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


class _Dumper(yaml.SafeDumper):
    """Write what `configs.yaml_loader` reads back unchanged: no aliases, no bare `on` or 1e3."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _quoted_unless_a_name(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = text.isidentifier() and text.lower() not in ("null", "true", "false")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _quoted_unless_a_name)
_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)
