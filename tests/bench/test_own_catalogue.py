"""The comparison of modes on your own snapshot counts as raw sets do."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grace.bench.result_file import read_result
from grace.catalogues.synth import preset_spec, write_folder
from grace.client import request_of_json
from grace.configs.eligibility import Eligibility
from grace.configs.serving import load_serving_config
from grace.index.builder import BuildSpec, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import ADS_FILE, REQUESTS_FILE, TARGETING_FILE
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, with_eligible
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.definition.beam_search import beam_search
from grace.model.engine.feature_reader import read_inputs
from support.in_process import invoke_grace
from support.oracle import RawAd, eligible

CPU = torch.device("cpu")
REQUESTS = 19  # more than one batch


def options(repository: Path, snapshots: Path) -> list[str]:
    given = ["--snapshots", str(snapshots), "--checkpoint", str(repository / "model" / "demo")]
    return [*given, "--config", str(repository / "configs" / "serve.yaml"), "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of the demonstration's catalogue, with fewer requests."""
    folder = tmp_path_factory.mktemp("own")
    write_folder(preset_spec("demo"), folder)
    spec = BuildSpec((folder / ADS_FILE,), folder / TARGETING_FILE, folder / "snapshots", threads=2)
    build(spec, lambda *_: None)
    requests = folder / REQUESTS_FILE
    lines = requests.read_text(encoding="utf-8").splitlines()
    requests.write_text("\n".join(lines[:REQUESTS]), encoding="utf-8")
    return folder


def test_the_counts_of_every_mode_are_those_of_raw_sets(folder: Path, repository: Path) -> None:
    asked = options(repository, folder / "snapshots")
    asked += ["--requests", str(folder / REQUESTS_FILE), "--out", str(folder / "own.json")]
    done = invoke_grace("bench", "eligibility", *asked, "--only", "exact", "--only", "union")
    assert done.exit_code == 0, done.stderr
    rows = read_result(folder / "own.json")["rows"]
    lines = (folder / REQUESTS_FILE).read_text(encoding="utf-8").splitlines()
    requests = [json.loads(line) for line in lines]
    users = [{name: v["values"] for name, v in each["user"].items()} for each in requests]
    ads = raw_ads(folder / ADS_FILE)
    schema = load_snapshot(folder / "snapshots").schema
    printed = [line.split() for line in done.stdout.splitlines()]
    for row, name in zip(rows, ("filter", "exact", "union"), strict=True):
        (line,) = [words for words in printed if words[:1] == [name]]
        assert f"{row['eligible_ads']:,.0f}" in line
        searched = plain_search(repository, folder / "snapshots", row["mode"], requests, users)
        generated = matched = wasted = sids = 0
        for user, kept in zip(users, searched, strict=True):
            for sid in kept:
                allowed = [eligible(schema, ad, user) for ad in ads[sid]]
                generated, matched = generated + len(allowed), matched + sum(allowed)
                wasted, sids = wasted + (not any(allowed)), sids + 1
        assert row["users"] == REQUESTS
        assert row["generated_ads"] == round(generated / REQUESTS, 1)
        assert row["eligible_ads"] == round(matched / REQUESTS, 1)
        assert row["sids"] == round(sids / REQUESTS, 1)
        assert row["wasted_sids_pct"] == round(100 * wasted / sids, 2)
    cd, exact, union = rows
    assert [row["mode"] for row in rows] == ["cd", "exact", "union"]
    assert exact["wasted_sids_pct"] == 0
    assert exact["useful_beams"] == exact["live_beams"]
    assert cd["eligible_ads"] < union["eligible_ads"] <= exact["eligible_ads"]


def raw_ads(table: Path) -> Mapping[tuple[int, ...], list[RawAd]]:
    found: dict[tuple[int, ...], list[RawAd]] = {}
    for row in pq.read_table(table).to_pylist():
        names = [name.removesuffix("_exclude") for name in row if name.endswith("_exclude")]
        lists = {
            name: None if row[name] is None else frozenset(row[name])
            for name in row
            if (name.removesuffix("_exclude") in names)
        }
        sides = {name: (lists[name], lists[f"{name}_exclude"]) for name in names}
        sid = tuple(row["sid"])
        found.setdefault(sid, []).append(RawAd(row["ad_id"], sid, rules=sides))
    return found


def plain_search(
    repository: Path,
    folder: Path,
    mode: str,
    requests: Sequence[Mapping[str, Any]],
    users: Sequence[Mapping[str, Sequence[str]]],
) -> list[list[tuple[int, ...]]]:
    """The SIDs of each request, by the reference of every operation, request by request."""
    snapshot = load_snapshot(folder, eligibility=Eligibility.of(mode))
    model = load_checkpoint(repository / "model" / "demo")
    config = load_serving_config(
        repository / "configs" / "serve.yaml", folder, repository / "model" / "demo"
    ).generation
    index = DecodeIndex.of(snapshot, CPU)
    encoder = UserEncoder(snapshot.schema, snapshot.set_values)
    searched = []
    for request, user in zip(requests, users, strict=True):
        message = request_of_json(request).SerializeToString()
        context = model.user_context(read_inputs(model.spec, [message], 1))
        asking = UserTensors.of(encoder.encode([user]), CPU)
        asking = with_eligible(asking, index, REFERENCE)
        profile = config.profiles[config.default_profile]
        found = beam_search(model.decoder, context, asking, index, profile, REFERENCE)
        leaves = found.leaves[0].numpy()
        sids = snapshot.trie.sids(leaves[leaves >= 0].astype(np.int64))
        searched.append([tuple(sid) for sid in sids.tolist()])
    return searched


@pytest.mark.subprocess
def test_a_comparison_on_a_cpu_needs_no_library_of_a_gpu() -> None:
    script = """
import sys
sys.modules.update(dict.fromkeys(("triton", "pynvml", "transformers", "matplotlib")))
import grace.bench.eligibility.own_catalogue, grace.bench.result_tables
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("gtm", "--tiny"), "--snapshots: means nothing to gtm; leave it out"),
        (("eligibility", "--sids", "9"), "--snapshots decides them; leave them out"),
        (("eligibility",), "--requests and --config belong together: give all four"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    repository: Path, tmp_path: Path, given: Sequence[str], fault: str
) -> None:
    done = invoke_grace("bench", *given, *options(repository, tmp_path))
    assert (done.exit_code, fault in done.stderr) == (2, True), done.stderr


def test_a_request_that_cannot_be_read_is_named(folder: Path, repository: Path) -> None:
    wrong = folder / "wrong.jsonl"
    many = {"user": {"location": {"values": [f"p{number}" for number in range(999)]}}}
    wrong.write_text("{}\n" + json.dumps(many), encoding="utf-8")
    asked = options(repository, folder / "snapshots")
    done = invoke_grace("bench", "eligibility", *asked, "--requests", wrong)
    assert done.exit_code == 2
    assert f"{wrong}: request 2: user.location" in done.stderr
