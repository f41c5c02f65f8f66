"""`grace synth --raw`: the catalogue's ads, embeddings and log, as a shop keeps them."""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from grace.catalogues.synth import preset_spec, write_folder
from support.in_process import invoke_grace

SPEC = preset_spec("tiny", sids=333, seed=5)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    done = invoke_grace("synth", "--raw", "--sids", "333", "--seed", "5", "--out", folder)
    assert done.exit_code == 0, done.stderr
    assert "sids: 333\n" in done.stdout
    assert "sid space" not in done.stdout
    return folder


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_raw_files_have_the_ads_and_items_of_the_catalogue(raw: Path, tmp_path: Path) -> None:
    write_folder(SPEC, tmp_path)
    expected = pq.read_table(tmp_path / "ads.parquet").to_pylist()
    shown = rows_of(raw / "ads.csv")
    assert [row["sku"] for row in shown] == [f"SKU-{ad['ad_id']}" for ad in expected]
    for row, ad in zip(shown, expected, strict=True):
        assert row["name"] == ad["title"]
        assert row["Country Code"] == "|".join(ad["country"] or ())
        assert row["excludedCountries"] == "|".join(ad["country_exclude"] or ())
        assert row["campaign_id"] == ("" if ad["campaign"] is None else str(ad["campaign"]))
    assert any("|" in row["places"] for row in shown)
    sid_of = {f"SKU-{ad['ad_id']}": tuple(ad["sid"]) for ad in expected}
    items = pq.read_table(raw / "items.parquet")
    assert sorted(items["sku"].to_pylist()) == sorted(sid_of)
    assert np.array(items["embedding"].to_pylist()).shape == (len(sid_of), 32)
    times: dict[str, list[str]] = {}
    for row in rows_of(raw / "clicks.csv"):
        assert row["item"] in sid_of
        times.setdefault(row["uid"], []).append(row["ts"])
    assert len(times) == 3000
    assert all(seen == sorted(seen) and 10 <= len(seen) <= 40 for seen in times.values())
