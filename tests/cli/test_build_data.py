"""`grace build --data`: a folder says where the tables are and what their columns are called."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.cli.options import number_of
from grace.configs.errors import InputError
from grace.index.ads_table import AdsTable
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import request_of_user
from support.in_process import invoke_grace
from support.raw_tables import numbers_of, write_codebook

TARGETING = """
attributes: {country: {values: [US, CA, NA]}}
sets: {place: {bloom_bits: 64}}
entities: [campaign]
"""
TABLES = """
ads:
  files: [../raw/ads.csv]
  list_separator: "|"
  columns: {ad_id: sku, ad_weight: bid, title: name, country: Country Code}
sids: codebook
id_map: ids.parquet
"""
ADS = """sku,bid,name,Country Code,place,place_exclude,campaign,notes
sku-2,1.5,"A ""lamp"", red",US|CA,,,7,x
sku-1,,Namibia,NA,"de/b, m",,7,
007,2,Chair,,,fr|it,8,
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    for folder in (shop, tmp_path / "raw"):
        folder.mkdir()
    (shop / "targeting.yaml").write_text(TARGETING)
    (shop / "tables.yaml").write_text(TABLES)
    (tmp_path / "raw" / "ads.csv").write_text(ADS)
    write_codebook(shop / "codebook", ["sku-1", "sku-2", "007", "sku-9"])
    return shop


def build(shop: Path, *options: str | Path) -> tuple[int, str, str]:
    done = invoke_grace("build", "--data", shop, "--root", shop / "snapshots", *options)
    return done.exit_code, done.stdout, done.stderr


def test_a_build_warns_of_misspelt_rules_and_refuses_a_hidden_one(shop: Path) -> None:
    raw = shop.parent / "raw" / "ads.csv"
    lost = ("contry", "max_age", "Flight Ends", "rules", "blocked_brands", "deny_list", "whitelist")
    head, *rows = ADS.splitlines()
    raw.write_text("\n".join([",".join((head, *lost)), *(row + "," * len(lost) for row in rows)]))
    code, _, err = build(shop)
    assert code == 0
    assert f"warning: ignored columns that may be rules: {', '.join(sorted(lost))}; name" in err
    tables = TABLES.replace("ads:\n", f"ads:\n  ignore: [{', '.join(lost)}]\n")
    (shop / "tables.yaml").write_text(tables)
    assert build(shop)[::2] == (0, "")
    (shop / "tables.yaml").write_text(TABLES)
    raw.write_text(ADS.replace("notes", "country"))
    code, _, err = build(shop)
    assert code == 2
    assert "column 'country' would not be read, since ads.columns.country" in err


def test_an_ad_keeps_its_number_and_its_reasons_in_every_build(shop: Path) -> None:
    assert build(shop)[0] == 0
    raw = shop.parent / "raw" / "ads.csv"
    head, *rows = ADS.splitlines()
    raw.write_text("\n".join([head, "sku-9,1,New,,,it,8,", *reversed(rows)]))
    # One ad more without a country: of so few ads, that is a large fall.
    assert build(shop, "--shards", "2", "--max-coverage-drop", "1")[0] == 0
    assert numbers_of(shop / "ids.parquet") == {"sku-2": 0, "sku-1": 1, "007": 2, "sku-9": 3}
    ads = load_snapshot(shop / "snapshots").ads
    weights = dict(zip(ads.ad_ids.tolist(), ads.ad_weight.tolist(), strict=True))
    assert weights == {0: 1.5, 1: 0.0, 2: 2.0, 3: 1.0}
    table = AdsTable(shop)
    assert number_of("ad", "007", table.ids) == 2
    with pytest.raises(InputError, match="ad '7': not in its id map; name an id of"):
        number_of("ad", "7", table.ids)
    known = table.known([2, 0, 77], request_of_user({"country": ["CA"]}))
    assert {ad: (each.item_id, each.title) for ad, each in known.items()} == {
        0: ("sku-2", 'A "lamp", red'),
        2: ("007", "Chair"),
        77: (None, ""),
    }
    (country,) = map(str, known[0].reasons)
    assert country == "country in [US, CA] (user: CA)"
    assert [str(reason) for reason in known[2].reasons] == ["place not in [fr, it]"]


def test_files_of_json_lines_may_lack_keys_that_others_have(shop: Path) -> None:
    raw, rows = shop.parent / "raw", [{"sku": "sku-1", "Country Code": "US"}]
    rows.append({"sku": "007", "place": "it", "campaign": "7"})
    for number, row in enumerate(rows):
        (raw / f"{number}.jsonl").write_text(json.dumps(row).replace('"7"', "7") + "\n")
    (raw / "ads.csv").unlink()
    columns = "{ad_id: sku, country: Country Code}"
    tables = f"ads: {{files: [../raw], columns: {columns}}}\nsids: codebook\nid_map: ids.parquet"
    (shop / "tables.yaml").write_text(tables)
    code, _, err = build(shop)
    assert (code, err) == (0, "")
    assert load_snapshot(shop / "snapshots").rules.num_rules == 2
    (raw / "2.jsonl").write_text('{"sku": "sku-2", "country code": "US"}\n')
    code, _, err = build(shop)
    assert (code, "2.jsonl: column 'country code' would not be read" in err) == (2, True)
    (raw / "2.jsonl").unlink()
    (raw / "1.jsonl").write_text('{"sku": "007", "campaign": 7}\n')
    code, _, err = build(shop)
    missing = "columns 'place' and 'place_exclude' and 'place_all' are missing"
    assert (code, missing in err) == (2, True)


def test_ids_that_are_no_integers_ask_for_a_map(shop: Path) -> None:
    raw, tables = shop.parent / "raw", TABLES.replace("id_map: ids.parquet\n", "")
    (shop / "tables.yaml").write_text(tables)
    code, _, err = build(shop)
    assert code == 2
    remedy = "id_map in tables.yaml numbers such ads"
    assert f"ad_id 'sku-2': is not an integer; {remedy}" in err
    pq.write_table(pa.table({"sku": ["a"], "Country Code": ["US"]}), raw / "ads.parquet")
    ads = "ads: {files: [../raw/ads.parquet], columns: {ad_id: sku}}\nsids: codebook"
    (shop / "tables.yaml").write_text(ads)
    options = ("--without", "country", "--without", "place", "--without", "campaign")
    code, _, err = build(shop, *options)
    assert code == 2
    assert "column 'sku', our 'ad_id', must be int64, got string; id_map in tables.yaml" in err


def test_a_codebook_that_is_not_made_yet_is_named_with_the_command_that_makes_it(
    shop: Path,
) -> None:
    (shop / "codebook" / "sids.parquet").unlink()
    (shop / "codebook").rmdir()
    code, out, err = build(shop)
    assert (code, out) == (2, "")
    assert err == (
        f"error: {shop}/codebook/sids.parquet: no such file, but {shop}/tables.yaml names its "
        "folder as `sids`: run `grace sids --embeddings EMBEDDINGS.parquet --out "
        f"{shop}/codebook` first\n"
    )
    done = invoke_grace("train", "--data", shop, "--out", shop / "model")
    assert done.exit_code != 0
    assert err.removeprefix("error: ").strip() in f"{done.exception}{done.stderr}"
