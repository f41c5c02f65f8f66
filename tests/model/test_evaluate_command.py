"""`grace evaluate` on a small checkpoint: with targeting, against the plain definition."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grace.configs.options import Fp8Product
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, TARGETING_FILE
from grace.index.targeting.schema import TargetingSchema, load_schema
from grace.model.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from support.in_process import invoke_grace
from support.models import random_decoder, sequence_scores
from support.oracle import RawAd, User, eligible

SIDS = 111


@pytest.fixture(scope="module")
def checkpoint(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "checkpoint"
    options = ("--config", training_folder / "recipe.yaml", "--steps", "30")
    assert invoke_grace("train", "--data", training_folder, "--out", out, *options).exit_code == 0
    return out


def evaluated(checkpoint: Path, data: Path, *options: str) -> dict[str, Any]:
    done = invoke_grace("evaluate", "--checkpoint", checkpoint, "--data", data, "--json", *options)
    assert done.exit_code == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def leaves_for(user: User, ads: Path, schema: TargetingSchema, catalogue: Snapshot) -> set[int]:
    """Return the SIDs with an ad that the user may see, by the definition on raw strings."""
    leaf_of = {
        tuple(s): leaf for leaf, s in enumerate(catalogue.trie.sids(np.arange(SIDS)).tolist())
    }
    found = set()
    for row in pq.read_table(ads).to_pylist():
        lists = {name: (row.get(name), row.get(f"{name}_exclude")) for name in schema.names}
        rules = {
            name: (None if inside is None else frozenset(inside), outside and frozenset(outside))
            for name, (inside, outside) in lists.items()
        }
        if eligible(schema, RawAd(row["ad_id"], tuple(row["sid"]), rules=rules), user):
            found.add(leaf_of[tuple(row["sid"])])
    return found


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
    counts = log.leaf_counts(SIDS)
    by_popularity = np.argsort(-counts, kind="stable").tolist()
    ranks: dict[str, list[int]] = {"model": [], "popularity": []}
    free: list[int] = []
    sizes = []
    for place, event in enumerate(events.tolist()):
        number = int(log.user_ids[log.event_user[event]])
        user = {
            "country": [["US"], ["DE"], ["GB"], []][number % 4],
            "gender": [["female"], ["male"]][number % 2],
            "location": [["us", "us/ca"], ["de"], []][number % 3],
        }
        allowed = leaves_for(user, folder_with_users / ADS_FILE, schema, training_catalogue)
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
    assert re.search(r"^fp8 +precision: fp8 needs a decoder whose d_model is", shown, re.M)


@pytest.fixture
def random_checkpoint(training_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint that fp8 can serve, with random weights in its decoder.

    Trained weights differ between machines, and on some, rounding would change no SID. This decoder
    is the same on every machine, and its logits differ widely between beams.
    """
    recipe, trained = tmp_path / "recipe.yaml", tmp_path / "trained"
    narrow = (training_folder / "recipe.yaml").read_text()
    sizes = "decoder: {layers: 1, d_model: 16, heads: 2, d_head: 8, d_ff: 24"
    assert sizes in narrow
    wide = "decoder: {layers: 2, d_model: 128, heads: 2, d_head: 64, d_ff: 256"
    recipe.write_text(narrow.replace(sizes, wide))
    options = ("--out", trained, "--config", recipe, "--steps", "1")
    assert invoke_grace("train", "--data", training_folder, *options).exit_code == 0
    model = load_checkpoint(trained)
    spec = model.spec
    model.decoder = random_decoder(spec.decoder, spec.vocab_sizes, spec.context_dim, seed=1)
    save_checkpoint(model, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_every_precision_is_measured_next_to_float32_on_the_same_users(
    training_folder: Path, random_checkpoint: Path
) -> None:
    given = ("--beams", "16", "--cutoffs", "2,16,40")
    report = evaluated(random_checkpoint, training_folder, *given)
    measured = report["by_precision"]
    assert measured["users"] == report["measured_users"]
    found = measured["found"]
    assert list(found) == ["fp32", "bf16", "fp8"]
    assert found["fp32"]["overlap"] == {"best 10": 1.0, "all": 1.0}
    plain = report["without_targeting"]["model"]["recall"]
    assert found["fp32"]["recall"] == plain
    for name in ("bf16", "fp8"):
        assert found[name]["refused"] is None
        assert all(0.7 < share <= 1 for share in found[name]["overlap"].values())
        for k, share in found[name]["recall"].items():
            one_user = 1 / measured["users"]
            assert share == pytest.approx(plain[k], abs=1.01 * one_user)
    # On some machines, bf16 finds all of float32's SIDs of so few users.
    assert found["fp8"]["overlap"]["all"] < found["bf16"]["overlap"]["all"] <= 1
    options = ("--checkpoint", random_checkpoint, "--data", training_folder, *given)
    done = invoke_grace("evaluate", *options)
    for name, own in found.items():
        line = re.search(rf"^{name} +(.*)$", done.stdout, re.MULTILINE)
        assert line is not None
        shares = [*own["recall"].values(), *own["overlap"].values()]
        assert line[1].split() == [f"{share:.1%}" for share in shares]


def test_no_row_of_fp8_is_measured_if_every_product_stays_in_bf16(
    training_folder: Path, random_checkpoint: Path
) -> None:
    given = [part for name in get_args(Fp8Product) for part in ("--fp8-keep", name)]
    options = ("--checkpoint", random_checkpoint, "--data", training_folder, *given)
    shown = invoke_grace("evaluate", *options).stdout
    assert re.search("^fp8 +fp8_keep: qkv, .*; keep fewer, or use bf16$", shown, re.MULTILINE)
    assert "fp8 keeps" not in shown


def test_a_checkpoint_of_other_sids_is_refused(checkpoint: Path, training_folder: Path) -> None:
    options = ("--sid-space", "another", "--vocab-sizes", "64,8,8,8")
    done = invoke_grace("evaluate", "--checkpoint", checkpoint, "--data", training_folder, *options)
    assert done.exit_code == 1
    assert "the model's sid_space is 'small-1', but the catalogue has 'another'" in done.stderr
    assert "snapshot" not in done.stderr
