"""Rows of tables as JSON lines, read by a build as it reads tables; `grace build --onto`: the next
version, of a version and tables of the ads that change."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from grace.configs.errors import GraceError, InputError
from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.builder.plan import plan_build
from grace.index.changes.onto import build_onto
from grace.index.changes.put_rows import PutRow, put_rows
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import TableSource, read_data_folder
from grace.index.verify import require_built
from support.arrays import assert_same_arrays
from support.builds import ads_table, arrays_in, build_spec, built, silent
from support.changed_ads import RawChange, changed, random_changes
from support.in_process import complaint, printed
from support.oracle import RawAd
from support.raw_tables import numbers_of, write_codebook, write_table
from support.strategies import Case, cases, examples, random_case


def rows_of(spec: BuildSpec) -> tuple[list[PutRow], list[str]]:
    data = replace(spec.data, catalogue=spec.data.catalogue or spec.data)
    return put_rows(plan_build(replace(spec, data=data), silent, silent))


@examples(40)
@given(case=cases())
def test_a_build_of_the_rows_is_that_of_the_table(
    case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    spec = build_spec(folder, case)
    rows, refused = rows_of(spec)
    assert (len(rows), refused) == (len(case.ads), [])
    lines = folder / "ads.jsonl"
    lines.write_text("".join(f"{row.text}\n" for row in rows), "utf-8")
    data = replace(spec.data, ads=TableSource((str(lines),)), catalogue=spec.data)
    again = replace(spec, data=data, root=folder / "again")
    expected, found = built(spec), built(again)
    assert_same_arrays(replace(found, facts=expected.facts), expected)


TARGETING = """
attributes: {country: {values: [US, CA]}}
sets: {tags: {}}
ranges: {age: {}}
flights: {flight: {}}
properties: {kind: {}}
entities: [brand]
"""
TABLES = """
ads:
  files: [none.csv]
  list_separator: "|"
  time_unit: s
  columns: {ad_id: sku, country: Country Code}
  ignore: [embedding]
sids: codebook
id_map: ids.parquet
entity_ids: {brand: brands.parquet}
"""
COLUMNS = ("sku", "title", "Country Code", "tags", "age_max", "flight_start", "kind", "brand")
ROW = ("5", "A lamp", "US|CA", "a|b", "34", "1767225600", "lamp", "Acme")
SAID: dict[str, Any] = {
    "ad_id": 1,
    "sid": [1, 1],
    "ad_weight": 0.0,
    "brand": 0,
    "country": ["US", "CA"],
    "tags": ["a", "b"],
    "age_max": 34.0,
    "flight_start": "2026-01-01T00:00:00.000",
    "kind": ["lamp"],
}


@pytest.fixture
def shop(tmp_path: Path) -> BuildSpec:
    (tmp_path / "targeting.yaml").write_text(TARGETING)
    (tmp_path / "tables.yaml").write_text(TABLES)
    write_codebook(tmp_path / "codebook", ["4", "5", "6"])
    ids = {"item_id": pa.array(["4", "5"]), "ad_id": pa.array([0, 1])}
    pq.write_table(pa.table(ids), tmp_path / "ids.parquet")
    data = read_data_folder(tmp_path)
    return BuildSpec(data, tmp_path, sid_space="raw-1", vocab_sizes=(63, 7))


def of_table(shop: BuildSpec, path: Path) -> tuple[list[PutRow], list[str]]:
    return rows_of(replace(shop, data=shop.data.of_ads_in([str(path)])))


def test_names_ids_sids_lists_and_times_are_those_of_the_data_folder(shop: BuildSpec) -> None:
    row = {**dict(zip(COLUMNS, ROW, strict=True)), "embedding": "1"}
    table = write_table(shop.root / "new.csv", [row])
    (put,), refused = of_table(shop, table)
    assert (json.loads(put.text), refused) == (SAID, [])
    assert (put.ad_id, put.source) == (1, f"{table} row 1, ad '5'")
    assert numbers_of(shop.root / "brands.parquet") == {"Acme": 0}


def test_lines_may_leave_out_keys_but_other_tables_have_all_columns(shop: BuildSpec) -> None:
    lines = write_table(shop.root / "new.jsonl", [{"sku": "5"}, {"sku": "4", "tags": "a"}])
    (five, four), refused = of_table(shop, lines)
    assert refused == []
    assert json.loads(five.text) == {"ad_id": 1, "sid": [1, 1], "ad_weight": 0.0}
    assert json.loads(four.text) == {"ad_id": 0, "sid": [0, 0], "ad_weight": 0.0, "tags": ["a"]}
    table = write_table(shop.root / "new.csv", [{"sku": "5", "tags": "a"}])
    with pytest.raises(
        Exception, match=r"column 'Country Code', named by ads\.columns\.country, is"
    ):
        of_table(shop, table)


def test_numbers_and_times_of_any_type_are_exact(shop: BuildSpec) -> None:
    table = pa.table(
        {
            "ad_id": pa.array([2**63 - 1, 9], pa.uint64()),
            "sid": pa.array([[1, 2], [62, 6]], pa.list_(pa.uint16())),
            "age_min": pa.array([Decimal("33.25"), None], pa.decimal128(9, 2)),
            "flight_start": pa.array([1, 1_000_001], pa.timestamp("us", "Europe/Oslo")),
            "flight_end": pa.array(["9999-12-31", None]),
        }
    )
    (shop.root / "tables.yaml").write_text("ads: {files: [none.csv]}\nsids: codebook\n")
    pq.write_table(table, shop.root / "new.parquet")
    names = ("country", "tags", "kind", "brand")
    spec = replace(shop, data=read_data_folder(shop.root), without=names)
    (one, two), _ = rows_of(replace(spec, data=spec.data.of_ads_in([f"{shop.root}/new.parquet"])))
    assert json.loads(one.text) == {
        "ad_id": 2**63 - 1,
        "sid": [1, 2],
        "ad_weight": 0.0,
        "age_min": 33.25,
        "flight_start": "1970-01-01T00:00:00.001",
        "flight_end": "9999-12-31T00:00:00.000",
    }
    assert json.loads(two.text)["flight_start"] == "1970-01-01T00:00:01.001"


def test_faulty_ads_are_named_and_others_are_put(shop: BuildSpec) -> None:
    rows = [{"sku": each, "age_max": 2**53 + 1 if each == "4" else 7} for each in "4566X"]
    lines = write_table(shop.root / "new.jsonl", rows)
    (row,), refused = of_table(shop, lines)
    assert row.ad_id == 1
    assert [each.partition(" row ")[2] for each in refused] == [
        "1, ad '4': age_max '9007199254740993': is beyond 2^53, where not every integer is exact",
        f"5, ad 'X': sid 'X': the ad has no SID in {shop.root}/codebook/sids.parquet; add it there",
        "3, ad '6': ad_id: is repeated; no copy of it is put",
        "4, ad '6': ad_id: is repeated; no copy of it is put",
    ]


def test_given_sids_come_first_and_the_folder_has_those_of_the_other_ads(shop: BuildSpec) -> None:
    lines = write_table(shop.root / "new.jsonl", [{"sku": each} for each in "4567"])
    given = write_table(shop.root / "g.jsonl", [{"item_id": x, "sid": [9, 2]} for x in ("7", "5")])

    def sids(path: Path) -> dict[str, list[int]]:
        rows, refused = rows_of(replace(shop, data=shop.data.of_ads_in([str(path)], str(given))))
        assert refused == []
        return {row.source[-2]: json.loads(row.text)["sid"] for row in rows}

    assert sids(lines) == {"4": [0, 0], "5": [9, 2], "6": [2, 2], "7": [9, 2]}
    own = write_table(shop.root / "own.jsonl", [{"sku": "7", "sid": [1, 1]}])
    assert sids(own) == {"7": [1, 1]}
    (shop.root / "empty.csv").write_text(",".join([*COLUMNS, "embedding"]) + "\n")
    assert sids(shop.root / "empty.csv") == {}
    (shop.root / "codebook" / "sids.parquet").unlink()
    assert sids(write_table(shop.root / "new.jsonl", [{"sku": "7"}])) == {"7": [9, 2]}


SPACE = {b"grace.sid_space": b"theirs", b"grace.vocab_sizes": b"63,7"}


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("stated", ["codebook/sids.parquet", "a.parquet"])
def test_a_folder_of_another_sid_space_is_refused_whatever_the_table(
    shop: BuildSpec, stated: str, ending: str
) -> None:
    file = shop.root / stated
    (shop.root / "codebook" / "sids.parquet").unlink()
    pq.write_table(pa.table({"item_id": ["5"]}).replace_schema_metadata(SPACE), file)
    sids = "sids: codebook\n" if stated.startswith("codebook") else ""
    (shop.root / "tables.yaml").write_text(
        f"ads: {{files: [a.parquet], list_separator: '|'}}\n{sids}"
    )
    table = write_table(shop.root / f"new.{ending}", [{"ad_id": 5, "sid": [1, 2]}])
    without = ("country", "tags", "age", "flight", "kind", "brand")
    shop = replace(shop, data=read_data_folder(shop.root), without=without)
    match = rf"{shop.root}: its SID space is 'theirs' \({file}\), but that of .+ is 'raw-1'; give"
    with pytest.raises(InputError, match=match):
        of_table(shop, table)
    (row,), _ = of_table(replace(shop, sid_space="theirs"), table)
    assert json.loads(row.text)["sid"] == [1, 2]
    file.unlink()
    assert len(of_table(shop, table)[0]) == 1


def test_given_sids_of_another_space_are_refused(shop: BuildSpec) -> None:
    given = pa.table({"item_id": ["5"], "sid": [[1, 2]]}).replace_schema_metadata(SPACE)
    pq.write_table(given, shop.root / "given.parquet")
    table = write_table(shop.root / "new.jsonl", [{"sku": "5"}])
    data = shop.data.of_ads_in([str(table)], f"{shop.root}/given.parquet")
    with pytest.raises(
        InputError, match=r"given\.parquet: SIDs of the space 'theirs' \[.+\], but the c"
    ):
        rows_of(replace(shop, data=data))


def onto(spec: BuildSpec, version: int, changes: Sequence[RawChange], case: Case) -> BuildReport:
    puts = [each for each in changes if isinstance(each, RawAd)]
    file = spec.data.folder / "changes.parquet"
    pq.write_table(ads_table(case.schema, puts), file)
    removed = [each for each in changes if not isinstance(each, RawAd)]
    files = [str(file)] if puts or not removed else []
    spec = replace(spec, data=spec.data.of_ads_in(files), without=())
    return build_onto(spec, version, removed, silent, silent)


@pytest.mark.parametrize("seed", range(6))
def test_the_version_has_the_bytes_of_a_build_of_the_changed_ads(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=63)
    spec, ads = build_spec(tmp_path, case), {ad.ad_id: ad for ad in case.ads}
    spec = replace(spec, updates_watermark=7)
    version = build(spec, silent).version
    for watermark in (0, 9):
        changes = random_changes(rng, case, ads, most=20)
        changes.append(ads[min(ads.keys() - {*map(_id, changes)})])
        if watermark:
            changes = [next(iter(ads))]  # the build reads no table
        ads = changed(ads, changes)
        report = onto(replace(spec, updates_watermark=watermark), version, changes, case)
        whole = replace(case, ads=tuple(ads.values()))
        expected = build(build_spec(tmp_path / f"{watermark}", whole), silent)
        assert arrays_in(report.path) == arrays_in(expected.path)
        assert (report.published, report.ads) == (True, len(ads))
        written = load_snapshot(report.path)
        require_built(written, threads=1)
        assert written.facts.updates_watermark == (watermark or 7)
        version = report.version


def _id(change: RawChange) -> int:
    return change.ad_id if isinstance(change, RawAd) else change


def refused(spec: BuildSpec, changes: Sequence[RawChange], case: Case) -> str:
    with pytest.raises(GraceError) as caught:
        onto(spec, 1, changes, case)
    return str(caught.value)


def test_what_cannot_be_built_onto_a_version_is_refused(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec, ad = build_spec(tmp_path, case), case.ads[0]
    build(spec, silent)
    assert "have the ad with number" in refused(spec, [ad, ad.ad_id], case)
    gone: list[RawChange] = [
        replace(ad, sid=(9999,) * len(ad.sid)),
        *(each.ad_id for each in case.ads),
    ]
    assert "refused so far" in refused(spec, gone[:1], case)
    less = replace(spec, max_rejects=1)
    assert "no ad is left; there is nothing" in refused(less, gone, case)
    assert "no rows; add the changed ads to it" in refused(spec, [], case)
    onto(spec, 1, [2**60, 2**60 + 1], case)  # as floats they would be equal
    (tmp_path / "targeting.yaml").write_text("attributes: {planet: {values: [mars]}}\n")
    assert "is not the targeting schema of version 1" in refused(spec, [ad], case)
    with pytest.raises(InputError, match="no version 7 here"):
        onto(spec, 7, [ad], case)


def test_the_command_names_what_is_missing_and_what_it_did_not_find(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=33)
    spec = build_spec(tmp_path, case)
    pq.write_table(ads_table(case.schema, case.ads), tmp_path / "ads.parquet")
    pq.write_table(ads_table(case.schema, case.ads[:3]), tmp_path / "few.parquet")
    inputs: tuple[str | Path, ...] = ("build", "--data", tmp_path, "--root", spec.root)
    whole = ("--sid-space", "plain", "--vocab-sizes", ",".join(map(str, case.vocab_sizes)))
    without = [each for name in spec.without for each in ("--without", name)]
    printed(*inputs, *whole, *without)
    few: tuple[str | Path, ...] = ("--ads", tmp_path / "few.parquet", *without)
    for lone in (few, ("--onto", "1"), ("--sids", "x.parquet"), ("--remove", "1")):
        assert "--onto VERSION needs --ads TABLE or --remove AD" in complaint(*inputs, *lone)
    fault = complaint(*inputs, *few, "--onto", "1", "--shards", "2")
    assert "leave --shards and --ray out" in fault
    said = printed(*inputs, *few, "--onto", "1", "--remove", str(case.ads[-1].ad_id))
    assert f"ads: {len(case.ads) - 1}\n" in said
    assert "version: 2\n" in said
    ids = [ad.ad_id for ad in case.ads[:3]]
    removed = [each for ad_id in ids for each in ("--remove", str(ad_id))]
    maps = spec.root / "id_maps.json"
    maps.write_text('{"ad": {"largest": 3, "digest": "x"}}')  # a build without tables has no maps
    said = printed(*inputs, "--onto", "2", *removed, "--max-coverage-drop", "1")
    assert f"ads: {len(case.ads) - 4}\n" in said
    assert json.loads(maps.read_text())["ad"]["largest"] == 3
    maps.unlink()
    sids, lines = tmp_path / "sids.parquet", tmp_path / "few.jsonl"
    pq.write_table(pa.table({"item_id": ids, "sid": [case.ads[3].sid] * 3}), sids)
    lines.write_text("".join(f'{{"ad_id": {ad_id}}}\n' for ad_id in ids))
    printed(*inputs, "--onto", "3", "--ads", lines, "--sids", sids, "--max-coverage-drop", "1")
    ads, trie = (snapshot := load_snapshot(spec.root)).ads, snapshot.trie
    leaves = np.searchsorted(ads.ad_offsets, ads.ordinals(ids), "right") - 1
    assert trie.sids(leaves).tolist() == [[*case.ads[3].sid]] * 3
