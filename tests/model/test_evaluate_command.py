"""Evaluation: recall and its rules by hand; `grace evaluate` against the plain definition."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, TARGETING_FILE
from grace.index.targeting.schema import load_schema
from grace.model.checkpoints.checkpoint import load_encoder_decoder
from grace.model.train.evaluate import ABSENT, Followers, Popularity, quality
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from support.in_process import invoke_grace, reported
from support.models import sequence_scores
from support.oracle import Asked, RawUser, eligible
from support.stage_cases import raw_ads

SIDS = 111


@pytest.fixture(scope="module")
def checkpoint(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "checkpoint"
    options = ("--config", training_folder / "recipe.yaml", "--steps", "30")
    assert invoke_grace("train", "--data", training_folder, "--out", out, *options).exit_code == 0
    return out


def evaluated(checkpoint: Path, data: Path, *options: str) -> dict[str, Any]:
    return reported("evaluate", "--checkpoint", checkpoint, "--data", data, *options)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_with_targeting_only_sids_of_eligible_ads_are_ranked(
    device: str,
    checkpoint: Path,
    folder_with_users: Path,
    training_catalogue: Snapshot,
    training_log: Interactions,
) -> None:
    """Beams as wide as the catalogue: the model ranks by its probabilities of eligible SIDs."""
    options = ("--device", device, "--beams", str(SIDS), "--cutoffs", "1,5,20")
    report = evaluated(checkpoint, folder_with_users, *options)
    model, log = load_encoder_decoder(checkpoint), training_log
    events = log.last_events()
    context = model.user_context(HistoryBatches(log, history_input(model.spec)).inputs(events))
    sids = torch.from_numpy(training_catalogue.trie.sids(np.arange(SIDS))).long()
    schema = load_schema(folder_with_users / TARGETING_FILE)
    ads = raw_ads(folder_with_users / ADS_FILE, schema)
    leaf_of = {tuple(sid): leaf for leaf, sid in enumerate(sids.tolist())}
    counts = log.leaf_counts(SIDS)
    by_popularity = np.argsort(-counts, kind="stable").tolist()
    ranks: dict[str, list[int]] = {"model": [], "popularity": []}
    free: list[int] = []
    sizes = []
    for place, event in enumerate(events.tolist()):
        number = int(log.user_ids[log.event_user[event]])
        user = RawUser(
            country=[["US"], ["DE"], ["GB"], []][number % 4],
            gender=[["female"], ["male"]][number % 2],
            years=[19.5, 20.0, 31.0, None][number // 2 % 4],
            location=[["us", "us/ca"], ["de"], []][number % 3],
        )
        user.asked = Asked(at=int(log.times_ms[event]))
        allowed = {leaf_of[ad.sid] for ad in ads if eligible(schema, ad, user)}
        sizes.append(len(allowed))
        truth = int(log.leaves[event])
        if truth not in allowed:
            continue
        scores = sequence_scores(model.decoder, context, place, sids).tolist()
        above = [leaf for leaf in range(SIDS) if scores[leaf] > scores[truth]]
        ranks["model"].append(len(allowed.intersection(above)))
        free.append(len(above))
        listed = [leaf for leaf in by_popularity if leaf in allowed]
        ranks["popularity"].append(listed.index(truth))
    found = report["targeted"]
    assert (found["people"], found["measured"]) == (len(events), len(free))
    assert 0 < len(free) < len(events)
    of_users = {*schema.user_names} - {each.name for each in schema.attributes if each.clock}
    assert {*found["missing"]} == of_users - {"country", "gender", "location", "years"}
    assert found["eligible_share"] == pytest.approx(np.mean(sizes) / SIDS, abs=1e-4)
    for name, expected in ranks.items():
        for k in (1, 5, 20):
            share = np.mean([rank < k for rank in expected])
            assert found["with_targeting"][name]["recall"][str(k)] == pytest.approx(share, abs=1e-4)
    for k in (1, 5, 20):
        share = np.mean([rank < k for rank in free])
        assert found["without_targeting"]["model"]["recall"][str(k)] == pytest.approx(
            share, abs=1e-4
        )


def test_a_log_that_does_not_say_who_users_are_is_measured_without_targeting(
    checkpoint: Path, training_folder: Path
) -> None:
    given = ("--beams", "16", "--cutoffs", "2,16,40")
    found = evaluated(checkpoint, training_folder, *given)["without_targeting"]
    options = ("--checkpoint", checkpoint, "--data", training_folder, *given)
    shown = invoke_grace("evaluate", *options).stdout
    assert "With targeting: the log does not say who the users are: add columns" in shown
    for name, own in found.items():
        line = re.search(rf"^{name} +(.*)$", shown, re.MULTILINE)
        assert line is not None
        shares = [own[kind].get(k) for kind in ("recall", "ndcg") for k in ("2", "16", "40")]
        assert line[1].split() == ["-" if x is None else f"{x:.1%}" for x in shares]


def test_a_checkpoint_of_other_sids_is_refused(checkpoint: Path, training_folder: Path) -> None:
    options = ("--sid-space", "another", "--vocab-sizes", "64,8,8,8")
    done = invoke_grace("evaluate", "--checkpoint", checkpoint, "--data", training_folder, *options)
    assert done.exit_code == 1
    assert "the model's sid_space is 'small-1', but the catalogue has 'another'" in done.stderr
    assert "snapshot" not in done.stderr


def interactions(histories: list[list[int]], held_out: list[bool]) -> Interactions:
    """Users with these leaves, one after another."""
    leaves = np.array([leaf for history in histories for leaf in history])
    return Interactions(
        offsets=np.cumsum([0, *map(len, histories)]),
        user_ids=np.arange(len(histories)),
        held_out=np.repeat(held_out, [len(history) for history in histories]),
        leaves=leaves,
        leaf_sids=np.arange(leaves.max() + 1, dtype=np.uint16)[:, np.newaxis],
        times_ms=np.arange(len(leaves)),
    )


LOG = interactions(
    [[4, 2, 4, 2, 0], [4, 3, 4, 3, 4, 3], [1, 2], [4, 2], [0, 1], [3, 0]],
    [False, False, False, True, True, True],
)


ALL = np.ones((5, 5), np.bool_)


def test_training_sees_successive_events_of_one_user_and_measures_users_with_a_history() -> None:
    pairs = [(4, 2), (2, 4), (4, 2), (2, 0), (4, 3), (3, 4), (4, 3), (3, 4), (4, 3), (1, 2)]
    assert [*map(tuple, LOG.transitions().tolist())] == pairs
    assert interactions([[1], [2, 3]], [True, True]).last_events().tolist() == [2]


def test_recall_at_k_is_the_share_of_ranks_below_k() -> None:
    ranks = np.array([0, 4, 5, 9, 10, 49, ABSENT, ABSENT])
    assert quality(ranks).recall == {1: 1 / 8, 5: 2 / 8, 10: 4 / 8, 50: 6 / 8}


def test_ndcg_at_k_is_the_mean_of_the_discounted_ranks_below_k() -> None:
    ranks = np.array([0, 4, 5, 2, ABSENT])
    gains = [1 / math.log2(2), 1 / math.log2(6), 1 / math.log2(7), 1 / math.log2(4)]
    found = quality(ranks, (1, 5, 10)).ndcg
    assert found[1] == pytest.approx(gains[0] / 5)
    assert found[5] == pytest.approx((gains[0] + gains[1] + gains[3]) / 5)
    assert found[10] == pytest.approx(sum(gains) / 5)


def test_popularity_ranks_by_training_counts_and_ties_by_leaf() -> None:
    assert LOG.leaf_counts(5).tolist() == [1, 1, 3, 3, 5]
    popularity = Popularity.of(LOG, 5)
    for every in (ALL, None):
        assert popularity.ranks(np.arange(5), every).tolist() == [3, 4, 1, 2, 0]
    not_2 = np.array([[True, True, False, True, True]] * 2)
    assert popularity.ranks(np.array([0, 3]), not_2).tolist() == [2, 1]


def test_followers_rank_by_how_often_they_came_next_in_training() -> None:
    events = LOG.last_events()
    assert LOG.leaves[events].tolist() == [2, 1, 0]
    # After 4 came 3 three times and 2 twice; nothing ever came after 0; after 3 only 4 came.
    followers = Followers.of(LOG)
    last, truth = LOG.leaves[events - 1], LOG.leaves[events]
    for every in (ALL, None):
        assert followers.ranks(last, truth, every).tolist() == [1, ABSENT, ABSENT]
    after_4 = np.array([4, 4]), np.array([2, 2])
    all_or_not_3 = np.array([[True] * 5, [True, True, True, False, True]])
    assert followers.ranks(*after_4, all_or_not_3).tolist() == [1, 0]
