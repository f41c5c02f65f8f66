"""`grace evaluate` on a small checkpoint: with targeting, against the plain definition."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, TARGETING_FILE
from grace.index.targeting.schema import load_schema
from grace.model.checkpoints.checkpoint import load_checkpoint
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


def test_with_targeting_only_sids_of_eligible_ads_are_ranked(
    checkpoint: Path,
    folder_with_users: Path,
    training_catalogue: Snapshot,
    training_log: Interactions,
) -> None:
    """Beams as wide as the catalogue: the model ranks by its probabilities of eligible SIDs."""
    report = evaluated(checkpoint, folder_with_users, "--beams", str(SIDS), "--cutoffs", "1,5,20")
    model, log = load_checkpoint(checkpoint), training_log
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
