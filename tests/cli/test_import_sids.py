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
    for fact in ("items: 3", "sids: 3", "sid space: shop-1", "vocab sizes: 16,16"):
        assert f"{fact}\n" in done.stdout
    (tmp_path / "targeting.yaml").write_text("{}\n")
    (tmp_path / "ads.csv").write_text("ad_id,name\n2,lamp\n0,chair\n")
    (tmp_path / "tables.yaml").write_text("ads: {files: [ads.csv]}\nsids: sids.parquet\n")
    done = invoke_grace("build", "--data", tmp_path, "--root", tmp_path / "snapshots")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "ads: 2\nsids: 2\n" in done.stdout
