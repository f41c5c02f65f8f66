"""`grace import-sids`: from a published index to a snapshot."""

import json
from pathlib import Path

import pytest

from support.in_process import invoke_grace

INDEX = {"0": ["<a_1>", "<b_2>"], "1": ["<a_1>", "<b_3>"], "2": ["<a_9>", "<b_2>"]}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / "Shop.index.json").write_text(json.dumps(INDEX))
    return tmp_path / "Shop.index.json"


def test_an_import_prints_a_summary_and_its_table_joins_ads(index: Path, tmp_path: Path) -> None:
    sids, options = tmp_path / "sids.parquet", ("--sid-space", "shop-1", "--vocab-sizes", "16,16")
    done = invoke_grace("import-sids", index, "--out", sids, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "3 items of 3 SIDs, from 3 items" in done.stdout
    assert "SID space shop-1, vocabulary 16,16" in done.stdout
    (tmp_path / "targeting.yaml").write_text("{}\n")
    (tmp_path / "ads.csv").write_text("ad_id,name\n2,lamp\n0,chair\n")
    tables = ("--ads", tmp_path / "ads.csv", "--sids", sids)
    inputs = (*tables, "--targeting", tmp_path / "targeting.yaml")
    done = invoke_grace("build", *inputs, "--root", tmp_path / "snapshots")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "2 SIDs, 2 ads" in done.stdout


def test_refused_items_are_counted_and_listed(index: Path, tmp_path: Path) -> None:
    index.write_text(json.dumps({**INDEX, "": ["<a_1>", "<b_2>"], "4": ["<a_1>"]}))
    command = ("import-sids", index, "--out", tmp_path / "sids.parquet", "--sid-space", "s")
    done = invoke_grace(*command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 2 items refused so far, --max-rejects allows 0; first: ")
    done = invoke_grace(*command, "--max-rejects", "2")
    assert done.exit_code == 0
    assert "refused 1: sid: the SID length is 2" in done.stdout
    assert "refused 1: item_id: is empty" in done.stdout
    assert "listed in" in done.stdout
    done = invoke_grace(*command, "--max-rejects", "2", "--force", "--json")
    report = json.loads(done.stdout)
    assert (report["items"], sum(report["rejects"].values())) == (3, 2)
    assert Path(report["reject_file"]).read_text().count("\n") == 2
