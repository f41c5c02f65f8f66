"""Changes to the folder of a model, for tests of the faults that its readers name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grace.model.definition.model import AnyModel

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"

Change = Callable[[Path], object]


def written(name: str, **changes: Any) -> Change:
    """Change keys of a JSON file; None removes a key."""

    def change(folder: Path) -> None:
        values = {**json.loads((folder / name).read_text()), **changes}
        kept = {key: value for key, value in values.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return change


def weights(change: Callable[[dict[str, Tensor]], object]) -> Change:
    def change_weights(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return change_weights


def assert_equal_models(one: AnyModel, other: AnyModel) -> None:
    assert one.spec == other.spec
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
