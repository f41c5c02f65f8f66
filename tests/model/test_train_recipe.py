"""Training configurations: strict, and of the data's SID space."""

from pathlib import Path

import pytest

from grace.configs.errors import ConfigError
from grace.configs.training import TrainingConfig
from grace.index.snapshot import Snapshot
from grace.model.train.run import catalogue_of, load_recipe
from support.training import SMALL_RECIPE, write_small_data


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    return catalogue_of(folder)


def test_what_the_model_section_leaves_out_is_the_datas(
    catalogue: Snapshot, tmp_path: Path
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL_RECIPE)
    recipe = load_recipe(path, catalogue)
    assert recipe.model.sid_space == "small-1"
    assert recipe.model.vocab_sizes == (64, 8, 8, 8)
    assert recipe.training == TrainingConfig(steps=60, batch=63, learning_rate=0.01, warmup_steps=6)
    assert recipe.generation.profiles["full"].num_sids == 9


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("model:", "model:\n  sid_space: other", "model.sid_space is other, the data's is small-1"),
        ("model:", "model:\n  vocab_sizes: [64, 8, 8]", r"model.vocab_sizes is \[64, 8, 8\]"),
        ("training:", "trainings:", "unknown key 'trainings'; known: model, training, generation"),
        ("steps: 60, ", "", "training: missing key 'steps'"),
        ("steps: 60", "steps: 0", "training: steps: must be at least 1, got 0"),
        ("0.01", "-0.01", "training: learning_rate: must be above 0, got -0.01"),
        ("warmup_steps: 6", "warmup_steps: -6", "warmup_steps: must not be negative, got -6"),
        ("num_sids: 9", "num_sid: 9", r"generation: profiles\.full: unknown key 'num_sid'"),
        ("clicks: {kind: sequence", "clicks: {kind: seq", r"model: inputs\.clicks\.kind"),
    ],
)
def test_a_faulty_recipe_is_refused_by_path(
    catalogue: Snapshot, tmp_path: Path, written: str, instead: str, message: str
) -> None:
    assert written in SMALL_RECIPE
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL_RECIPE.replace(written, instead, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(path, catalogue)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_section_is_named(catalogue: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL_RECIPE.partition("training:")[0])
    with pytest.raises(ConfigError, match="section 'training' is missing"):
        load_recipe(path, catalogue)
