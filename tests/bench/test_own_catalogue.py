"""The comparison of modes on your own snapshot counts as raw sets do."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grace.bench.result_file import Row, read_result
from grace.client import request_of_json
from grace.configs.eligibility import Eligibility
from grace.configs.serving import load_serving_config
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, with_eligible
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.definition.beam_search import beam_search
from grace.model.engine.feature_reader import read_inputs
from support.in_process import invoke_grace
from support.oracle import RawAd, eligible

CPU = torch.device("cpu")
REQUESTS = 19  # more than one batch


class Compared(NamedTuple):
    folder: Path
    printed: str
    rows: Sequence[Row]


def options(repository: Path, snapshots: Path) -> list[str]:
    given = ["--snapshots", str(snapshots), "--checkpoint", str(repository / "model" / "demo")]
    return [*given, "--config", str(repository / "configs" / "serve.yaml"), "--device", "cpu"]


@pytest.fixture(scope="module")
def compared(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The commands of the document, with fewer requests."""
    folder = tmp_path_factory.mktemp("own")
    text = (repository / "docs" / "eligibility.md").read_text(encoding="utf-8")
    section = text.partition("## On your own catalogue")[2]
    found = re.search(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    commands = found.group(1).replace("\\\n", " ").splitlines()
    for place in ("model/demo", "configs/serve.yaml"):
        commands = [command.replace(place, str(repository / place)) for command in commands]
    printed = ""
    for command in commands:
        words = shlex.split(command)
        if "bench" in words:
            requests = folder / "modes" / "requests.jsonl"
            lines = requests.read_text(encoding="utf-8").splitlines()
            requests.write_text("\n".join(lines[:REQUESTS]), encoding="utf-8")
            words += ["--out", str(folder / "own.json")]
        with chdir(folder):
            done = invoke_grace(*words[1:])
        assert done.exit_code == 0, done.stderr
        printed = done.stdout
    return Compared(folder, printed, read_result(folder / "own.json")["rows"])


def test_the_counts_of_every_mode_are_those_of_raw_sets(
    compared: Compared, repository: Path
) -> None:
    demo = compared.folder / "modes"
    lines = (demo / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = [json.loads(line) for line in lines]
    users = [{name: v["values"] for name, v in each["user"].items()} for each in requests]
    ads = raw_ads(demo / "ads.parquet")
    schema = load_snapshot(demo / "snapshots").schema
    for row in compared.rows:
        searched = plain_search(repository, demo / "snapshots", row["mode"], requests, users)
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
    cd, exact, union = compared.rows
    assert [row["mode"] for row in compared.rows] == ["cd", "exact", "union"]
    assert exact["wasted_sids_pct"] == 0
    assert exact["useful_beams"] == exact["live_beams"]
    assert cd["eligible_ads"] < union["eligible_ads"] <= exact["eligible_ads"]


def raw_ads(table: Path) -> Mapping[tuple[int, ...], list[RawAd]]:
    found: dict[tuple[int, ...], list[RawAd]] = {}
    for row in pq.read_table(table).to_pylist():
        names = [name.removesuffix("_exclude") for name in row if name.endswith("_exclude")]
        sides: dict[str, Any] = {
            name: tuple(
                None if row.get(column) is None else frozenset(row[column])
                for column in (name, f"{name}_exclude")
            )
            for name in names
        }
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


def test_the_table_on_the_screen_has_a_line_for_each_way(compared: Compared) -> None:
    lines = [line.split() for line in compared.printed.splitlines()]
    for row, name in zip(compared.rows, ("filter", "exact", "union"), strict=True):
        (own,) = [words for words in lines if words[:1] == [name]]
        assert f"{row['eligible_ads']:,.0f}" in own


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


def test_a_request_that_cannot_be_read_is_named(compared: Compared, repository: Path) -> None:
    demo = compared.folder / "modes"
    wrong = demo / "wrong.jsonl"
    many = {"user": {"location": {"values": [f"p{number}" for number in range(999)]}}}
    wrong.write_text("{}\n" + json.dumps(many), encoding="utf-8")
    asked = options(repository, demo / "snapshots")
    done = invoke_grace("bench", "eligibility", *asked, "--requests", wrong)
    assert done.exit_code == 2
    assert f"{wrong}: request 2: user.location" in done.stderr
