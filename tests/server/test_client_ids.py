"""The Python client and the commands with the ids of a data folder, on a real server."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grace.client import AsyncClient, Client, Events, RequestError, RetrieveResult, request_of
from grace.configs.errors import InputError
from grace.index.tables.ids import DataIds
from grace.index.targeting.schema import load_schema
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.health import status
from support.in_process import complaint, invoke_grace, printed
from support.oracle import RawAd
from support.raw_tables import write_table
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles
from support.stage_cases import raw_ads
from support.text_shop import advertiser, sku, write_map, write_text_shop

pytestmark = pytest.mark.subprocess

TIMEOUT = 60.0


def test_ads_entities_and_histories_take_the_ids_of_the_tables(
    healthy_server: ServerProcess, serving_files: ServingFiles, shop: Path
) -> None:
    rows = pq.read_table(serving_files.catalogue / "ads.parquet").to_pylist()
    of_ad = {row["ad_id"]: row for row in rows}
    history = [row["ad_id"] for row in rows[:3]]
    sids = [tuple(of_ad[ad]["sid"]) for ad in history]
    with (
        Client(healthy_server.address) as plain,
        Client(healthy_server.address, ids=shop) as client,
    ):
        whole = plain.retrieve(sequences={"clicks": sids}, timeout=TIMEOUT)
        items = [*map(sku, history)]
        found = client.retrieve(sequences={"clicks": items}, timeout=TIMEOUT)
        assert [(ad.ad_id, ad.item_id) for ad in found.ads] == [
            (ad.ad_id, sku(ad.ad_id)) for ad in whole.ads
        ]
        assert {ad.item_id for ad in whole.ads} == {None}
        assert found.ads[-1].item_id == sku(whole.ads[-1].ad_id)
        assert f"item_id='{found.ads[1].item_id}'" in repr(found.ads)
        first, second, *_ = whole.ads.ad_ids.tolist()
        brand = of_ad[second]["advertiser"]
        less = client.retrieve(
            sequences={"clicks": items},
            exclude_ads=[sku(first)],
            exclude={"advertiser": advertiser(brand)},
            timeout=TIMEOUT,
        )
        assert less.ads.ad_ids.tolist() == [
            ad
            for ad in whole.ads.ad_ids.tolist()
            if ad != first and of_ad[ad]["advertiser"] != brand
        ]
        events = Events(
            [items[0], "gone", sids[1], "gone", items[2]],
            timestamps_ms=[1, 2, 3, 4, 5],
            side={"action": [1, 2, 3, 1, 2]},
        )
        left = Events([sids[0], sids[1], sids[2]], [1, 3, 5], {"action": [1, 3, 2]})
        asked = client.retrieve(sequences={"clicks": events}, timeout=TIMEOUT)
        assert asked.unknown_items == ("gone",)
        ids, unknown = DataIds(shop), list[str]()
        same = request_of({"sequences": {"clicks": events}}, ids, unknown)
        assert (same, unknown) == (request_of({"sequences": {"clicks": left}}), ["gone", "gone"])

    async def asynchronous() -> RetrieveResult:
        async with AsyncClient(healthy_server.address, ids=ids) as client:
            return await client.retrieve(sequences={"clicks": items}, timeout=TIMEOUT)

    assert list(asyncio.run(asynchronous()).ads) == list(found.ads)


@pytest.mark.parametrize(
    ("fields", "with_ids", "fault"),
    [
        ({"exclude_ads": [7, "CJ-1"]}, False, r"exclude_ads\[1\]: 'CJ-1': texts need the data"),
        (
            {"sequences": {"clicks": ["x"]}},
            False,
            r"features\.sequences\.clicks\.sids\[0\]: 'x': texts need .*ids=FOLDER\)",
        ),
        (
            {"sequences": {"clicks": ["x", None]}},
            True,
            r"features\.sequences\.clicks\.sids\[1\]: None; give a SID or an item's id",
        ),
        (
            {"exclude": {"campaign": ["x"]}},
            True,
            r"exclude\.campaign\.ids\[0\]: campaign 'x': ids are 0 to .* tables\.yaml",
        ),
        (
            {"sequences": {"clicks": Events(["x", "y"], [1])}},
            True,
            r"features\.sequences\.clicks\.timestamps_ms: number of values: 1, of events: 2; send",
        ),
    ],
)
def test_a_text_that_has_no_number_is_refused_with_its_path(
    shop: Path, fields: Any, with_ids: bool, fault: str
) -> None:
    with (
        Client("127.0.0.1:1", ids=shop if with_ids else None) as client,
        pytest.raises(RequestError, match=f"^{fault}"),
    ):
        client.retrieve(**fields, timeout=TIMEOUT)


def test_texts_of_digits_are_numbers_without_an_id_map() -> None:
    assert request_of({"exclude_ads": ["12"]}) == request_of({"exclude_ads": [12]})
    assert request_of({"strict": None}) == request_of({})  # type: ignore[typeddict-item]


def test_a_map_that_a_build_changed_is_read_again(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    shop = write_text_shop(tmp_path, serving_files, ads=0)
    (shop / "ads.parquet").unlink()  # a client needs the maps and the SIDs only
    ids = DataIds(shop)
    assert ids.names("ad", [7, 8]) == [None, None]
    write_map(shop / "ids.parquet", {"new": 7})
    assert (ids.names("ad", [7, 8]), ids.number("ad", "new")) == (["new", None], 7)
    write_map(shop / "ids.parquet", {"new": 7, "newer": 8})
    assert ids.number("ad", "newer") == 8
    assert ids.sid("newest") is None
    write_table(shop / "sids.parquet", [{"item_id": "newest", "sid": [1, 2]}])
    assert ids.sid("newest") == (1, 2)
    write_table(shop / "sids.parquet", [{"item_id": "newest", "sid": [3, 4]}])
    wait_until(lambda: ids.sid("newest") == (3, 4), "the table is read again")
    write_map(shop / "ids.parquet", {"newer": 7, "new": 8})
    wait_until(
        lambda: (ids.number("ad", "new"), ids.names("ad", [7])) == (8, ["newer"]),
        "the map is read again",
    )
    (shop / "ids.parquet").rename(shop / "gone.parquet")
    whole = (shop / "sids.parquet").read_bytes()
    (shop / "sids.parquet").write_bytes(whole[: len(whole) // 2])  # a copy under way
    time.sleep(1.1)  # so that the files are looked at again
    assert (ids.number("ad", "newer"), ids.sid("newest")) == (7, (3, 4))
    for use in (lambda: ids.number("ad", "newest"), lambda: ids.names("ad", [9])):
        with pytest.raises(InputError, match=r"ids\.parquet: no such file; restore the id map, or"):
            use()
    assert ids.number("ad", "newer") == 7


def test_a_file_of_a_folder_that_changes_in_place_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "ads").mkdir()
    (tmp_path / "tables.yaml").write_text("ads: {files: [ads]}")
    file = tmp_path / "ads" / "a.jsonl"
    file.write_text('{"ad_id": 1, "sid": [1, 2]}\n')
    ids = DataIds(tmp_path)
    assert ids.sid("22") is None
    with file.open("r+") as opened:  # the folder's own stamp stays
        opened.write('{"ad_id": 22, "sid": [1, 2]}\n')
    assert ids.sid("22") == (1, 2)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_in_a_folder_of_integers_the_ids_are_texts_of_digits(tmp_path: Path, form: str) -> None:
    rows = [{"ad_id": 12, "sid": [3, 4]}, {"ad_id": 7, "sid": [5, 6]}]
    write_table(tmp_path / f"ads.{form}", rows)
    (tmp_path / "tables.yaml").write_text(f"ads: {{files: [ads.{form}]}}")
    ids = DataIds(tmp_path)
    assert (ids.number("ad", "12"), ids.names("ad", [12])) == (12, ["12"])
    assert (ids.number("brand", "3"), ids.names("brand", [3])) == (3, ["3"])
    assert (ids.sid("7"), ids.sid("8")) == ((5, 6), None)


@pytest.fixture
def ads(serving_files: ServingFiles) -> dict[int, RawAd]:
    catalogue = serving_files.catalogue
    schema = load_schema(catalogue / "targeting.yaml")
    return {ad.ad_id: ad for ad in raw_ads(catalogue / "ads.parquet", schema)}


def reply_of(server: ServerProcess, files: ServingFiles) -> RetrieveResponse:
    with Caller(server.address) as caller:
        return caller.call(message(files.requests[0], max_ads=10_000)).response


def admin(server: ServerProcess, *arguments: str | Path) -> str:
    return printed("admin", *arguments, "--address", server.admin)


def test_ads_and_advertisers_are_stopped_listed_and_resumed_by_their_own_ids(
    operated: ServerProcess, serving_files: ServingFiles, shop: Path, ads: dict[int, RawAd]
) -> None:
    before = list(reply_of(operated, serving_files).ad_ids)
    brand = ads[before[1]].entities["advertiser"]
    stopped = {ad for ad in before if ads[ad].entities["advertiser"] == brand} | {before[0]}
    admin(operated, "stop", "ad", sku(before[0]), "--data", shop)
    admin(operated, "stop", "advertiser", advertiser(brand), "--data", shop)
    assert not stopped & {*reply_of(operated, serving_files).ad_ids}
    listed = f"ad {sku(before[0])}\nadvertiser {advertiser(brand)}\n"
    assert admin(operated, "stops", "--data", shop) == listed
    names = json.loads(admin(operated, "stops", "--json", "--data", shop))
    assert names == {"ad": [sku(before[0])], "advertiser": [advertiser(brand)]}
    assert admin(operated, "stops") == f"ad {before[0]}\nadvertiser {brand}\n"
    asked = ("explain", "--ad", sku(before[1]), "--data", shop, "--address", operated.admin)
    done = invoke_grace(*asked)
    assert f"advertiser {brand} is {advertiser(brand)}\n" in done.stdout
    kept = (shop / "advertisers.parquet").read_bytes()
    write_map(shop / "advertisers.parquet", {str(brand): brand + 1})
    assert f"advertiser {brand} is not in its id map\n" in invoke_grace(*asked).stdout
    assert f"\nadvertiser number {brand}\n" in admin(operated, "stops", "--data", shop)
    (shop / "advertisers.parquet").write_bytes(kept)
    admin(operated, "resume", "advertiser", advertiser(brand), "--data", shop)
    admin(operated, "resume", "ad", sku(before[0]), "--data", shop)
    assert list(reply_of(operated, serving_files).ad_ids) == before


def test_weights_are_set_and_ended_by_the_ads_own_ids(
    operated: ServerProcess, shop: Path, ads: dict[int, RawAd]
) -> None:
    first, second, *_ = ads
    said = admin(operated, "weight", sku(first), sku(second), "--to", "-0.25", "--data", shop)
    assert said.startswith("weighted -0.25; stopped ads of the served snapshot: 0, before 0 (")
    assert status(operated).updates.weights == 2
    assert admin(operated, "weight", str(first)).startswith("ended the live weights; ")
    assert status(operated).updates.weights == 1
    admin(operated, "weight", sku(second), "--data", shop)
    assert status(operated).updates.weights == 0


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("stop", "ad", "CJ-1", "DATA"), "not in its id map; name an id of a table that was built"),
        (("stop", "campaign", "x", "DATA"), "1; tables.yaml maps ad, advertiser; check 'ca"),
        (("stop", "ad", "007"), "ad '007': ids are 0 to 2^63 - 1; give --data FOLDER if its id"),
        (
            ("resume", "advertizer", "3"),
            "level: 'advertizer' is not a level of the served snapshot, and nothing has changed;",
        ),
        (("weight", "7", "--to", "nan"), "weight"),
    ],
)
def test_an_id_that_has_no_number_changes_nothing(
    operated: ServerProcess, shop: Path, arguments: tuple[str, ...], fault: str
) -> None:
    before = status(operated).updates.sequence
    options = ["--data", str(shop)] if "DATA" in arguments else []
    given = [each for each in arguments if each != "DATA"]
    assert fault in complaint("admin", *given, *options, "--address", operated.admin)
    assert status(operated).updates.sequence == before
