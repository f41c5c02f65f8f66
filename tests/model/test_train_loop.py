"""The training loop: its loss, its schedule, and that it learns the same thing twice."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from grace.configs.errors import ConfigError
from grace.configs.training import TrainingConfig
from grace.kernels import DecodeIndex
from grace.model.checkpoints.init import random_model
from grace.model.train.evaluate import ABSENT, model_ranks
from grace.model.train.interactions import HistoryBatches, history_input, read_interactions
from grace.model.train.loop import fit, learning_rate_at, reproducible, sequence_loss
from grace.model.train.run import LOG_FILE, Recipe, catalogue_of, load_recipe
from support.models import SMALL_DECODER, random_context, random_decoder, sequence_scores
from support.training import SMALL_RECIPE, write_small_data


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with reproducible():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    (folder / "recipe.yaml").write_text(SMALL_RECIPE)
    return folder


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Recipe:
    return load_recipe(folder / "recipe.yaml", catalogue_of(folder))


@pytest.fixture(scope="module")
def batches(folder: Path, recipe: Recipe) -> HistoryBatches:
    log = read_interactions(folder / LOG_FILE, catalogue_of(folder).trie)
    return HistoryBatches(log, history_input(recipe.model))


def silent(*_: object) -> None:
    pass


def test_the_loss_is_minus_the_log_probability_of_the_sid() -> None:
    vocab_sizes = (5, 7, 3)
    decoder = random_decoder(SMALL_DECODER, vocab_sizes, 9, seed=1)
    context = random_context(4, 6, 9, seed=1)
    sids = torch.tensor([[4, 6, 2], [0, 0, 0], [1, 5, 1], [3, 2, 0]])
    loss = sequence_loss(decoder.sequence_logits(context, sids), sids)
    each = [sequence_scores(decoder, context, b, sids[b : b + 1])[0] for b in range(4)]
    assert loss.item() == pytest.approx(-torch.stack(each).mean().item(), abs=1e-5)


def test_training_lowers_the_loss(batches: HistoryBatches, recipe: Recipe) -> None:
    losses = fit(random_model(recipe.model, 1), batches, recipe.training, 1, silent)
    assert len(losses) == 60
    assert sum(losses[-9:]) / 9 < 0.6 * losses[0]


def test_a_loss_that_is_no_number_names_the_rate(batches: HistoryBatches, recipe: Recipe) -> None:
    config = replace(recipe.training, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(ConfigError, match=r"learning_rate: with 1e\+30 the loss is nan at step \d"):
        fit(random_model(recipe.model, 1), batches, config, 1, silent)


def test_every_weight_learns(batches: HistoryBatches, recipe: Recipe) -> None:
    model = random_model(recipe.model, 1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    fit(model, batches, replace(recipe.training, steps=2, warmup_steps=0), 1, silent)
    same = [
        name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])
    ]
    assert same == []


def test_equal_seeds_learn_equal_weights_and_another_seed_others(
    batches: HistoryBatches, recipe: Recipe
) -> None:
    config = replace(recipe.training, steps=7)
    learned = []
    for seed in (1, 1, 2):
        model = random_model(recipe.model, 1)
        fit(model, batches, config, seed, silent)
        learned.append(model.state_dict())
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
    assert not any(torch.equal(learned[0][n], learned[2][n]) for n in ("decoder.head",))


def test_settings_of_torch_are_put_back(batches: HistoryBatches, recipe: Recipe) -> None:
    torch.use_deterministic_algorithms(False)
    config = replace(recipe.training, steps=1, threads=2)
    fit(random_model(recipe.model, 1), batches, config, 1, silent)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (1, False)


def test_the_rate_rises_in_a_line_and_falls_as_half_a_cosine_to_zero() -> None:
    config = TrainingConfig(steps=111, learning_rate=2.0, warmup_steps=11)
    rates = [learning_rate_at(step, config) for step in range(112)]
    assert rates[0] == pytest.approx(2 / 11)
    assert rates[10] == rates[11] == 2.0
    assert rates[61] == pytest.approx(1.0)
    assert rates[111] == pytest.approx(0.0)
    assert rates[11:] == sorted(rates[11:], reverse=True)
    assert learning_rate_at(0, replace(config, warmup_steps=0)) == 2.0


def test_a_models_rank_is_the_place_of_the_truth_among_the_generated(
    batches: HistoryBatches, recipe: Recipe, folder: Path
) -> None:
    """Beams as wide as the catalogue generate every SID, in order of their probability."""
    catalogue = catalogue_of(folder)
    model = random_model(recipe.model, 3)
    index = DecodeIndex.of(catalogue, torch.device("cpu"))
    events = batches.log.last_events()
    widest = replace(recipe.generation.profiles["full"], beams=(1, 111, 111, 111), num_sids=111)
    ranks = model_ranks(model, index, batches, events, widest, silent)
    sids = torch.from_numpy(catalogue.trie.sids(np.arange(111))).long()
    with torch.inference_mode():
        context = model.user_context(batches.inputs(events))
    for user, event in enumerate(events):
        scores = sequence_scores(model.decoder, context, user, sids)
        truth = scores[batches.log.leaves[event]]
        assert ranks[user] == (scores > truth).sum()
    narrow = model_ranks(model, index, batches, events, recipe.generation.profiles["full"], silent)
    assert set(narrow[narrow != ABSENT].tolist()) <= set(range(9))
