"""Training: recipes, the loss and its schedule, whole runs, and what runs refuse."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from grace.configs.errors import ConfigError, InputError
from grace.index.snapshot import Snapshot
from grace.index.trie import SidTrie
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.checkpoints.init import random_model
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.loop import fit, learning_rate_at, reproducible, sequence_loss
from grace.model.train.recipe import RECIPE_FILE, Recipe, TrainingConfig, read_recipe, recipe_for
from grace.model.train.run import train_model
from grace.model.train.unfinished import Unfinished
from support.builds import silent
from support.models import SMALL_DECODER, random_context, random_decoder, sequence_scores
from support.training import SMALL_RECIPE, small_run


@pytest.fixture(autouse=True)
def same_sums() -> Iterator[None]:
    with reproducible():
        yield


@pytest.fixture(scope="module")
def recipe(
    training_folder: Path, training_catalogue: Snapshot, training_log: Interactions
) -> Recipe:
    written = read_recipe(training_folder / "recipe.yaml")
    return recipe_for(written, training_catalogue, training_log)


@pytest.fixture(scope="module")
def batches(training_log: Interactions, recipe: Recipe) -> HistoryBatches:
    return HistoryBatches(training_log, history_input(recipe.model))


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("model:", "model:\n  sid_space: other", "model.sid_space is other, the data's is small-1"),
        ("model:", "model:\n  vocab_sizes: [64, 8, 8]", r"model.vocab_sizes is \[64, 8, 8\]"),
        ("training:", "trainings:", "unknown key 'trainings'; known: model, training, generation"),
        ("training: {", "training:\nother: {", "training: expected keys with values; add some"),
        ("steps: 60", "steps: 0", r"training\.steps: must be at least 1, got 0"),
        ("0.01", "-0.01", r"training\.learning_rate: must be above 0, got -0\.01"),
        ("warmup_steps: 6", "warmup_steps: -6", r"training\.warmup_steps: must be at least 0"),
        ("num_sids: 9", "num_sid: 9", r"generation\.profiles\.full: unknown key 'num_sid'"),
        ("clicks: {kind: sequence", "clicks: {kind: seq", r"model\.inputs\.clicks\.kind"),
    ],
)
def test_a_faulty_recipe_is_refused_by_path(
    training_catalogue: Snapshot,
    training_log: Interactions,
    tmp_path: Path,
    written: str,
    instead: str,
    message: str,
) -> None:
    assert written in SMALL_RECIPE
    path = tmp_path / "recipe.yaml"
    path.write_text(SMALL_RECIPE.replace(written, instead, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        recipe_for(read_recipe(path), training_catalogue, training_log)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_loss_is_minus_the_log_probability_of_the_sid() -> None:
    vocab_sizes = (5, 7, 3)
    decoder = random_decoder(SMALL_DECODER, vocab_sizes, 9, seed=1)
    context = random_context(4, 6, 9, seed=1)
    sids = torch.tensor([[4, 6, 2], [0, 0, 0], [1, 5, 1], [3, 2, 0]])
    loss = sequence_loss(decoder.sequence_logits(context, sids), sids)
    each = [sequence_scores(decoder, context, b, sids[b : b + 1])[0] for b in range(4)]
    assert loss.item() == pytest.approx(-torch.stack(each).mean().item(), abs=1e-5)


def test_training_lowers_the_loss_and_changes_every_weight(
    batches: HistoryBatches, recipe: Recipe
) -> None:
    model = random_model(recipe.model, 1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    losses = fit(model, batches, replace(recipe.training, steps=40), 1, silent)
    assert len(losses) == 40
    assert sum(losses[-9:]) / 9 < 0.6 * losses[0]
    after = model.state_dict()
    assert [name for name, weight in after.items() if torch.equal(weight, before[name])] == []


def test_a_loss_that_is_no_number_names_the_rate(batches: HistoryBatches, recipe: Recipe) -> None:
    config = replace(recipe.training, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(ConfigError, match=r"learning_rate: with 1e\+30 the loss is nan at step \d"):
        fit(random_model(recipe.model, 1), batches, config, 1, silent)


def test_the_rate_rises_linearly_and_falls_as_half_a_cosine_to_zero() -> None:
    config = TrainingConfig(steps=111, learning_rate=2.0, warmup_steps=11)
    rates = [learning_rate_at(step, config) for step in range(112)]
    assert rates[0] == pytest.approx(2 / 11)
    assert rates[10] == rates[11] == 2.0
    assert rates[61] == pytest.approx(1.0)
    assert rates[111] == pytest.approx(0.0)
    assert rates[11:] == sorted(rates[11:], reverse=True)
    assert learning_rate_at(0, replace(config, warmup_steps=0)) == 2.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_run_reports_the_recall_of_the_checkpoint_that_it_wrote(
    training_folder: Path, tmp_path: Path, device: str
) -> None:
    """The model is an InterFormer, which reads the log's times and actions too."""
    config = tmp_path / "recipe.yaml"
    t5 = SMALL_RECIPE[SMALL_RECIPE.index("    t5:") : SMALL_RECIPE.index("  decoder:")]
    interformer = (
        "    interformer: {blocks: 1, d_model: 16, heads: 2, d_ff: 24, context_tokens: 7}\n"
    )
    side = SMALL_RECIPE.replace("max_length: 5", "max_length: 5, side: {action: 5}")
    config.write_text(side.replace(t5, interformer))
    seen: list[str] = []
    notes: list[str] = []
    report = train_model(
        small_run(training_folder, tmp_path / "out", config=config, steps=7, device=device),
        lambda step, _done, _total, latest: seen.append(f"{step} {latest}"),
        notes.append,
    )
    assert notes[0] == f"reading the ads and the log of {training_folder}"
    assert notes[1].endswith(f"events: 7 steps of 63 events on {device}, 0.3 passes over the log")
    assert report.config.steps == len(report.losses) == 7
    assert report.config.warmup_steps == 0
    assert report.losses[-1] < report.losses[0]
    assert seen[0].startswith("train loss 1")
    assert seen[-1] == "evaluate "
    assert report.weights == sum(w.numel() for w in load_checkpoint(tmp_path / "out").parameters())
    assert list(report.recall["model"]) == [1, 5]  # 9 SIDs come out, so there is no recall at 10
    assert list(report.recall["popularity"]) == [1, 5, 10, 50]


def test_equal_seeds_give_equal_weights_and_reports_and_another_seed_others(
    training_folder: Path, tmp_path: Path
) -> None:
    run = small_run(training_folder, tmp_path / "a", steps=2)
    runs = run, replace(run, out=tmp_path / "b"), replace(run, out=tmp_path / "c", seed=2)
    one, same, other = (train_model(each, silent) for each in runs)
    assert replace(one, train_seconds=0) == replace(same, train_seconds=0)
    assert one.checkpoint != other.checkpoint
    assert one.losses != other.losses


def full_trie(first: int, second: int) -> SidTrie:
    """SIDs of all pairs of two tokens."""
    children = np.array([0, *range(first, first + first * second + 1, second)], np.int32)
    tokens = np.concatenate([np.arange(first), np.tile(np.arange(second), first)])
    counts = (1, first, first * second)
    return SidTrie((first, second), counts, children, tokens.astype(np.uint16))


@pytest.mark.parametrize(
    ("vocab_sizes", "on_gpu", "on_cpu", "beams"),
    [
        ((8, 17), (64, 128), (64, 4000), (1, 8)),
        ((256, 300), (96, 256), (96, 600), (1, 128)),
        ((1000, 700), (256, 512), (96, 600), (1, 128)),
    ],
)
def test_the_default_recipe_follows_the_catalogue_and_the_log(
    training_log: Interactions,
    training_catalogue: Snapshot,
    vocab_sizes: tuple[int, int],
    on_gpu: tuple[int, int],
    on_cpu: tuple[int, int],
    beams: tuple[int, ...],
) -> None:
    """On a GPU three passes over a long log, or 500 steps; on a CPU, steps for minutes."""
    catalogue = replace(training_catalogue, trie=full_trie(*vocab_sizes))
    count = 1_000_003
    long = replace(
        training_log,
        offsets=np.array([0, count]),
        user_ids=np.array([7]),
        held_out=np.zeros(count, np.bool_),
        leaves=np.zeros(count, np.int64),
        times_ms=np.arange(count),
    )
    width, batch = on_gpu
    steps = min(20_000, round(3 * count / batch))
    cases = (
        (long, "cuda", (width, steps)),
        (long, "cpu", on_cpu),
        (training_log, "cuda", (width, 500)),
    )
    for log, device, expected in cases:
        recipe = recipe_for(read_recipe(None), catalogue, log, device)
        assert (recipe.model.decoder.d_model, recipe.training.steps) == expected
        t5 = recipe.model.encoder.t5
        assert t5 is not None
        assert t5.d_model == expected[0]
        numbers = (t5.token_offsets, t5.num_tokens, t5.eos_token)
        assert numbers == ((1, 1 + vocab_sizes[0]), 1 + sum(vocab_sizes), 0)
        recipe.generation.require_vocabulary(recipe.model.vocab_sizes)
    assert recipe.generation.profiles["full"].beams == beams
    longest = int(np.diff(training_log.offsets).max()) - 1
    assert recipe.model.sequences["clicks"].max_length <= longest


def test_the_recipe_of_a_checkpoint_makes_the_same_recipe_again(
    training_folder: Path, training_catalogue: Snapshot, training_log: Interactions, tmp_path: Path
) -> None:
    train_model(small_run(training_folder, tmp_path / "out", steps=1), silent)
    written = (tmp_path / "out" / RECIPE_FILE).read_text()
    assert "sid_space" not in written
    again = recipe_for(
        read_recipe(tmp_path / "out" / RECIPE_FILE), training_catalogue, training_log
    )
    assert again.model == load_checkpoint(tmp_path / "out").spec
    assert again.training.steps == 1


def test_a_run_that_cannot_work_is_refused_before_it_trains(
    training_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    run = small_run(training_folder, tmp_path / "x")
    cases = [
        (replace(run, out=tmp_path / "full"), InputError, "full: is already there"),
        (replace(run, out=tmp_path / "full" / "file"), InputError, "file: is already there"),
        (replace(run, data=tmp_path), InputError, "so it is no data folder"),
        (replace(run, config=tmp_path / "no.yaml"), ConfigError, r"no\.yaml: cannot be read"),
    ]
    for each, error, message in cases:
        with pytest.raises(error, match=message):
            train_model(each, lambda *_: pytest.fail("training has started"))
    assert not (tmp_path / "x").exists()


def test_settings_of_torch_are_restored(batches: HistoryBatches, recipe: Recipe) -> None:
    torch.set_deterministic_debug_mode("default")
    config = replace(recipe.training, steps=1, threads=2)
    fit(random_model(recipe.model, 1), batches, config, 1, silent)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (1, False)


def test_batches_of_short_histories_have_few_places_and_the_same_loss(
    batches: HistoryBatches, recipe: Recipe
) -> None:
    model = random_model(recipe.model, 1)
    offsets = batches.log.offsets
    events = np.array([offsets[2], offsets[4] + 1, offsets[7] + 3])
    assert batches.lengths(events).tolist() == [0, 1, 3]
    assert batches.width(events) == 4
    assert batches.width(offsets[1:] - 1) == 5, "the most that the model reads"
    targets = batches.targets(events)
    contexts = [model.user_context(batches.inputs(events, width)) for width in (4, None)]
    assert [context.states.shape[1] for context in contexts] == [4 * 4 + 1, 5 * 4 + 1]
    narrow, wide = (
        sequence_loss(model.decoder.sequence_logits(context, targets), targets).item()
        for context in contexts
    )
    assert narrow == pytest.approx(wide, abs=1e-5)


def test_an_interrupt_within_a_step_keeps_no_half_of_it(
    batches: HistoryBatches, recipe: Recipe, tmp_path: Path
) -> None:
    def score() -> float:
        raise KeyboardInterrupt

    unfinished = Unfinished.of(small_run(tmp_path, tmp_path / "out"), (), print)
    config = replace(recipe.training, validate_every=3)
    with pytest.raises(KeyboardInterrupt):
        fit(random_model(recipe.model, 1), batches, config, 1, silent, score, unfinished)
    assert unfinished.read() is None


def test_smoothing_spreads_over_tokens_and_not_over_extra_rows() -> None:
    targets = torch.tensor([[2], [0], [1]])
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    smoothed = sequence_loss((logits,), targets, 0.3, [5])
    wanted = 0.3 / 5 * torch.ones(3, 5) + 0.7 * torch.eye(5)[targets[:, 0]]
    expected = -(wanted * logits.log_softmax(dim=1)[:, :5]).sum(dim=1).mean()
    assert smoothed.item() == pytest.approx(expected.item(), abs=1e-6)
