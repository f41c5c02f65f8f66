"""A loaded model is whole: nothing of it is read from the file any more."""

from pathlib import Path

import pytest

from grace.model.checkpoints.checkpoint import save_checkpoint
from grace.model.checkpoints.init import random_model
from support.command import run_python
from support.specs import T5


@pytest.mark.subprocess
def test_a_loaded_model_does_not_depend_on_its_file_any_more(tmp_path: Path) -> None:
    """In a process of its own: a weight that was still a map of the file would end it."""
    save_checkpoint(random_model(T5, seed=1), tmp_path / "model")
    done = run_python(
        "import os, sys, torch\n"
        "from pathlib import Path\n"
        "from grace.model.checkpoints.checkpoint import load_checkpoint\n"
        f"folder = Path({str(tmp_path / 'model')!r})\n"
        "loaded = load_checkpoint(folder)\n"
        "def sums(model):\n"
        "    return [weight.double().sum().item() for weight in model.parameters()]\n"
        "before = sums(load_checkpoint(folder))\n"
        "os.truncate(folder / 'model.safetensors', 0)\n"
        "after = sums(loaded)\n"
        "assert before == after\n"
        "assert not any(weight.requires_grad for weight in loaded.parameters())\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
