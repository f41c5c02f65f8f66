"""A model whose numbers are not finite for one value of one input, and as ever for all others."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from grace.model.checkpoints.checkpoint import save_checkpoint
from grace.model.checkpoints.init import random_model
from support.serving_files import SEED, model_spec

POISONED_DEVICE = 39
"""No user of the tiny catalogue has it."""

HUGE = 3e38


def poisoned_checkpoint(folder: Path) -> Path:
    """The tiny model of support.serving_files, but for the poison, in a new folder below."""
    model = random_model(model_spec(), SEED)
    width = model.spec.encoder.interformer.bag_dim if model.spec.encoder.interformer else 0
    weights = model.state_dict()
    # `device` is the second input that is no sequence. Each weight is finite, as a checkpoint's
    # must be; the sum of their products is not.
    projected = weights["features.project"][0, width : 2 * width]
    with torch.no_grad():
        weights["features.tables.categorical_device.embed"][POISONED_DEVICE] = (
            HUGE * projected.sign()
        )
    path = folder / "poisoned"
    save_checkpoint(model, path)
    return path


def poisoned_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, from the device that the model has no finite numbers for."""
    changed = deepcopy(dict(request))
    categorical = changed.setdefault("features", {}).setdefault("categorical", {})
    categorical["device"] = {"ids": [str(POISONED_DEVICE)]}
    return changed
