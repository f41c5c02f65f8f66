"""`grace admin`, `retrieve` and `explain` with the ids of a data folder, on a real server."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grace.index.targeting.schema import load_schema
from grace.proto.retrieval_pb2 import RetrieveResponse
from support.health import status
from support.in_process import complaint, invoke_grace, printed
from support.oracle import RawAd
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles
from support.stage_cases import raw_ads
from support.text_shop import advertiser, sku, write_map

pytestmark = pytest.mark.subprocess


@pytest.fixture
def ads(serving_files: ServingFiles) -> dict[int, RawAd]:
    catalogue = serving_files.folder / "catalogue"
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


def test_retrieve_and_explain_exclude_advertisers_by_their_own_ids(
    operated: ServerProcess, serving_files: ServingFiles, shop: Path, ads: dict[int, RawAd]
) -> None:
    file = shop / "request.json"
    file.write_text(json.dumps(serving_files.requests[0]))
    first = reply_of(operated, serving_files).ad_ids[0]
    brand = ads[first].entities["advertiser"]
    write_map(shop / "advertisers.parquet", {"acme": brand})
    options = ("--request", file, "--exclude", "advertiser=acme", "--data", shop)
    reply = json.loads(printed("retrieve", *options, "--address", operated.address, "--json"))
    assert reply["counts"]["ads_excluded"] > 0
    assert [each["item_id"] for each in reply["ads"]] == [*map(sku, map(int, reply["ad_ids"]))]
    assert all(ads[int(ad)].entities["advertiser"] != brand for ad in reply["ad_ids"])
    shown = printed("explain", "--ad", sku(first), *options, "--address", operated.admin)
    assert f"\nadvertiser {brand} is acme\n" in shown
    titles = pq.read_table(shop / "ads.parquet", columns=["sku", "title"]).to_pylist()
    (title,) = (row["title"] for row in titles if row["sku"] == sku(first))
    assert shown.startswith(f"{title}\nad {sku(first)} (ad_id {first}): ")


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
