"""Entities with ids of any kind: a build numbers them as it numbers ads, and the numbers stay."""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, Sharding, build
from grace.index.storage import load_snapshot, versions
from grace.index.tables.data_folder import read_data_folder
from support.arrays import assert_same_arrays
from support.builds import silent
from support.raw_tables import FORMATS, numbers_of, write_codebook, write_table

TABLES = """
ads: {{files: [{files}], columns: {{ad_id: sku, brand: Brand Name}}, list_separator: "|"}}
sids: codebook
id_map: ids.parquet
entity_ids: {{brand: brands.parquet, seller: maps/sellers.parquet}}
"""
SCHEMA = """
attributes: {country: {values: [US, NO]}}
entities: [brand, campaign, seller]
hash_seed: 7
"""
BRANDS = ("acme", "a,b=c d", "é", "7", "007", None, "")


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Return ads, some of which belong to no brand. Sellers and campaigns have integers as ids."""
    return [
        {
            "sku": f"sku-{at}",
            "country": "US",
            "Brand Name": BRANDS[at % len(BRANDS)],
            "campaign": at % 3 or None,
            "seller": 10**12 + at % 4,
        }
        for at in range(first, first + count)
    ]


def write_shop(shop: Path, files: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    for name, of_file in files.items():
        write_table(shop / name, of_file)
    write_codebook(shop / "codebook", [f"sku-{at}" for at in range(90)])
    text = TABLES.format(files=", ".join(files))
    (shop / "tables.yaml").write_text(text, encoding="utf-8")
    (shop / "targeting.yaml").write_text(SCHEMA)
    return shop


def built(
    shop: Path, shards: int | None = None, root: str = "one", *, publish: bool = True
) -> BuildReport:
    spec = BuildSpec(read_data_folder(shop), shop / root, publish=publish)
    if shards is None:
        return build(spec, silent)
    return build(spec, silent, sharding=Sharding(shards, run_rows=7))


def entities_of(report: BuildReport) -> dict[int, tuple[int | None, ...]]:
    """Return the numbers of each ad's brand, campaign and seller, by the ad's number."""
    snapshot = load_snapshot(report.path)
    columns = [
        [int(kind.ids[place]) if place >= 0 else None for place in kind.of_ad.tolist()]
        for kind in snapshot.entities
    ]
    return dict(zip(snapshot.ads.ad_ids.tolist(), zip(*columns, strict=True), strict=True))


def plain(given: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], ...]:
    """Return the numbers of ads, brands and sellers, in their order of arrival."""
    maps: tuple[dict[str, int], ...] = ({}, {}, {})
    for row in given:
        for known, name in zip(maps, ("sku", "Brand Name", "seller"), strict=True):
            if row[name] not in (None, ""):
                known.setdefault(str(row[name]), len(known))
    return maps


@pytest.mark.parametrize("form", FORMATS)
def test_entities_with_ids_of_any_kind_get_numbers_that_stay(tmp_path: Path, form: str) -> None:
    first, later = rows(0, 31), rows(31, 23)
    shop = write_shop(tmp_path / "shop", {f"a.{form}": first[:20], f"b.{form}": first[20:]})
    reports = [built(shop), built(shop, shards=3, root="shards")]
    one, shards = (load_snapshot(report.path) for report in reports)
    assert_same_arrays(one, shards)
    late = [{**row, "Brand Name": f"late-{at % 2}"} for at, row in enumerate(later)]
    write_table(shop / f"a.{form}", [*late, *first[:20]])  # the new ones come first
    for given, report in ((first, reports[0]), ([*first, *late], built(shop, shards=2))):
        ads, brands, sellers = plain(given)
        assert entities_of(report) == {
            ads[row["sku"]]: (
                brands.get(row["Brand Name"]),
                row["campaign"],
                sellers[str(row["seller"])],
            )
            for row in given
        }
    files = ("ids.parquet", "brands.parquet", "maps/sellers.parquet")
    assert tuple(numbers_of(shop / file) for file in files) == (ads, brands, sellers)


def without_map(shop: Path) -> None:
    (shop / "brands.parquet").unlink()


def older_map(shop: Path) -> None:
    table = pq.read_table(shop / "brands.parquet")
    pq.write_table(table.slice(0, table.num_rows - 1), shop / "brands.parquet")


def forked_map(shop: Path) -> None:
    """Restore an older copy, which another root's build gave new brands in another order."""
    table = pq.read_table(shop / "brands.parquet")
    (first, one, other, *rest) = table["item_id"].to_pylist()
    names = pa.array([first, other, one, *rest])
    pq.write_table(table.set_column(0, "item_id", names), shop / "brands.parquet")


def tables(old: str, new: str) -> Callable[[Path], None]:
    def change(shop: Path) -> None:
        text = (shop / "tables.yaml").read_text("utf-8")
        (shop / "tables.yaml").write_text(text.replace(old, new), "utf-8")

    return change


def damaged(text: str) -> Callable[[Path], object]:
    return lambda shop: (shop / "one" / "id_maps.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without_map, "/brands.parquet: no such file: restore"),
        (older_map, "/brands.parquet: another id map than the build before had, or an older copy"),
        (forked_map, "/brands.parquet: another id map than the build before had, or an older copy"),
        (tables("brand: brands", "brand: other"), "/other.parquet: no such file: restore"),
        (
            tables(", seller: maps/sellers.parquet", ""),
            "seller: its id map is missing: name it in tables.yaml again, build",
        ),
        (
            tables("brand: brands", "campaign: campaigns.parquet, brand: brands"),
            "/campaigns.parquet: would number ids of campaign, which were numbers",
        ),
        (damaged('{"ad": 5}'), "/id_maps.json: cannot be read: "),
        (damaged('{"ad": {"largest": Infinity, "digest": ""}}'), "/id_maps.json: cannot be read: "),
        (damaged("{"), "/id_maps.json: cannot be read: "),
    ],
)
def test_a_build_refuses_maps_that_are_not_those_of_the_build_before(
    tmp_path: Path, change: Callable[[Path], None], fault: str
) -> None:
    shop = write_shop(tmp_path / "shop", {"ads.parquet": rows(0, 9)})
    first = built(shop, publish=False)
    kept = json.loads((shop / "one" / "id_maps.json").read_text("utf-8"))
    assert {level: each and each["largest"] for level, each in kept.items()} == {
        "ad": 8,
        "brand": 4,
        "campaign": None,
        "seller": 3,
    }
    change(shop)
    with pytest.raises(InputError, match=re.escape(fault)) as refused:
        built(shop, shards=2)
    assert f"remove {shop}/one/id_maps.json if no server has stops" in str(refused.value) or (
        "restore it, or remove it if no server has stops by these ids" in str(refused.value)
    )
    assert versions(shop / "one") == (first.version,)
    (shop / "one" / "id_maps.json").unlink()
    assert built(shop).published


def test_a_map_with_the_same_numbers_in_any_order_and_new_ones_is_the_same(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", {"ads.parquet": rows(0, 9)})
    built(shop)
    known = numbers_of(shop / "brands.parquet")
    grown = {"late": 70, **dict(reversed([*known.items()])), "new": len(known)}
    columns = {"item_id": [*grown], "ad_id": pa.array(grown.values(), pa.int64())}
    pq.write_table(pa.table(columns), shop / "brands.parquet")
    for _ in range(2):
        assert built(shop).published
        assert numbers_of(shop / "brands.parquet") == grown


def test_a_build_that_fails_records_no_map(tmp_path: Path) -> None:
    faulty = {**rows(9, 1)[0], "Brand Name": " acme"}
    shop = write_shop(tmp_path / "shop", {"ads.csv": [*rows(0, 9), faulty]})
    with pytest.raises(InputError, match="1 ad"):
        built(shop)
    without_map(shop)
    write_table(shop / "ads.csv", rows(0, 9))
    assert built(shop).published


def test_builds_with_maps_in_different_orders_do_not_deadlock(tmp_path: Path) -> None:
    shop = write_shop(tmp_path, {"ads.parquet": rows(0, 9)})
    data = read_data_folder(shop)
    turned = replace(data, entity_ids=dict(reversed([*data.entity_ids.items()])))
    done: list[int] = []

    def build_often(at: int) -> None:
        for _ in range(3):
            build(BuildSpec(turned if at else data, shop / f"root-{at}"), silent)
        done.append(at)

    threads = [threading.Thread(target=build_often, args=(at,), daemon=True) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(done) == [0, 1]
