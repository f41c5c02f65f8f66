"""`grace retrieve` against a real server: its output, and every mistake of its user."""

import json
import math
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.cli.service.request_file import GivenRequest
from grace.client import request_of_json
from grace.index.tables.ids import DataIds
from support.documents import the_file
from support.in_process import complaint, printed
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def address(healthy_server: ServerProcess) -> str:
    return healthy_server.address


@pytest.fixture(scope="module")
def requests(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("retrieve") / "requests.jsonl"
    lines = map(json.dumps, serving_files.requests[2:])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_table_names_each_ad_with_its_score_and_sid(address: str, requests: Path) -> None:
    arguments = ("--request", requests, "--max-ads", "7", "--sids")
    shown = printed("retrieve", "--address", address, *arguments)
    ad = r"^ +(\d+) +(-\d+\.\d{3}) +([\d.e-]+) +(\d+ \d+ \d+ \d+) +$"
    rows = re.findall(ad, shown, re.MULTILINE)
    assert len(rows) == 7
    for _ad_id, score, probability, _sid in rows:
        assert float(probability) == pytest.approx(math.exp(float(score)), rel=0.01)
    assert "16 SIDs generated with profile full" in shown
    assert "7 returned, cut by max_ads" in shown
    assert re.search(r"^snapshot \d+, checkpoint \S+$", shown, re.MULTILINE)
    stages = r"queue [\d.]+, input [\d.]+, features [\d.]+, generate [\d.]+, post [\d.]+ ms$"
    assert re.search(rf"^[\d.]+ ms; of it on the server: {stages}", shown, re.MULTILINE)


def test_a_table_of_ads_names_each_ad_and_what_allows_the_user(
    address: str, requests: Path, serving_files: ServingFiles, tmp_path: Path
) -> None:
    """The catalogue is split into a folder of two files; its titles come from another column."""
    user = {name: given["values"] for name, given in serving_files.requests[2]["user"].items()}
    whole = pq.read_table(serving_files.catalogue / "ads.parquet")
    titles = pa.array([f"about {ad_id}" for ad_id in whole["ad_id"].to_pylist()])
    named = whole.drop_columns(["title"]).append_column("name", titles)
    half = len(named) // 2
    pq.write_table(named.slice(0, half), tmp_path / "a.parquet")
    pq.write_table(named.slice(half), tmp_path / "b.parquet")
    asked = ("retrieve", "--address", address, "--request", requests, "--sids")
    schema = serving_files.catalogue / "targeting.yaml"
    shutil.copy(schema, tmp_path)
    (tmp_path / "tables.yaml").write_text("ads: {files: [a.parquet, b.parquet]}")
    table = printed(*asked, "--max-ads", "40", "--data", tmp_path)
    shown = re.findall(r"^ +(\d+)\. about (\d+) \(ad (\d+), (.*)\)\n +(.*)$", table, re.M)
    rows = {row["ad_id"]: row for row in whole.to_pylist()}
    assert len(shown) > 9
    for place, (number, title, ad_id, facts, why) in enumerate(shown, start=1):
        row = rows[int(ad_id)]
        assert (int(number), title) == (place, ad_id)
        assert facts.endswith(f"SID {' '.join(map(str, row['sid']))}")
        ruled = [name for name in user if row.get(name) or row.get(f"{name}_exclude")]
        found = re.findall(r"(?:^|; )(\w+) (?:not )?in ", why)
        assert sorted(name for name in found if name in user) == sorted(ruled)
        assert found or why == "no rule: it is for everyone"
    assert any("(user: " in why for *_, why in shown)
    given = GivenRequest(events=[f"clicks={shown[0][2]}"]).message(DataIds(tmp_path))
    assert list(given.features.sequences["clicks"].sids) == rows[int(shown[0][2])]["sid"]
    unknown = ("--data", tmp_path, "--events", "clicks=1,2")
    assert "clicks: no ad with a SID has the id 1, 2; give ids" in complaint(*asked, *unknown)
    (tmp_path / "tables.yaml").write_text("ads: {files: [a.parquet]}")
    reply = json.loads(printed(*asked, "--data", tmp_path, "--json"))
    first_half = set(map(str, named["ad_id"][:half].to_pylist()))
    assert [each["ad_id"] for each in reply["ads"]] == reply["ad_ids"]
    for each in reply["ads"]:
        known = each["ad_id"] in first_half
        assert each["title"] == (f"about {each['ad_id']}" if known else None)


def test_entities_are_excluded_and_limited_by_options(address: str, requests: Path) -> None:
    asked = ("retrieve", "--address", address, "--request", requests, "--max-ads", "1000")
    limit = ("--at-most", "advertiser=1", "--at-most", "shop=3")
    assert "(invalid_field): shop: no such name" in complaint(*asked, *limit)
    shown = printed(*asked, *limit, "--no-strict")
    assert re.search(r" ads, \d+ for this user, [1-9]\d* left out by at_most, \d+ retu", shown)
    assert "not used by this catalogue and model: shop\n" in shown
    advertisers = ",".join(map(str, range(1, 300)))
    exclude = ("--exclude", f"advertiser={advertisers}", "--exclude", f"campaign={2**62}")
    shown = printed(*asked, *exclude)
    assert re.search(r" ads, [1-9]\d* excluded, 0 for this user, 0 returned$", shown, re.M)


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--user", "country"), 2, "--user country: write NAME=VALUE, such as country=US"),
        (("--exclude", "campaign=Acme, Inc.,7"), 2, "campaign 'Acme, Inc.': ids are 0 to 2^63"),
        (("--at-most", "advertiser=-1"), 2, "at_most.advertiser: '-1' is not within 0 to 429"),
        (("--events", "clicks=7"), 2, "--events clicks: give --data FOLDER, which has the ads'"),
        (("--exclude", "shop=3"), 2, "INVALID_ARGUMENT (invalid_field): shop: no such name, and"),
        (("--filter", "category.none_of="), 2, "--filter category.none_of=: write NAME=VALUES, "),
        (("--at", "2026-11-27"), 2, "--at 2026-11-27: write 2026-11-27T09:00:00Z, with a zo"),
        (("--ads", "new.csv"), 2, "--ads new.csv: give --data FOLDER, which says what its columns"),
        (("--profile", "huge"), 2, "INVALID_ARGUMENT (invalid_field): profile: 'huge' is not a"),
        (("--timeout", "0.001"), 1, "DEADLINE_EXCEEDED"),
        (("--request", "none.json"), 2, "none.json: No such file or directory; give a request"),
        (
            ("--address", "127.0.0.1:1", "--wait", "0.3"),
            1,
            "UNAVAILABLE: no server at 127.0.0.1:1 was ready within 0.3 s; see its log, or start",
        ),
    ],
)
def test_a_mistake_is_one_line(
    address: str, options: tuple[str, ...], code: int, error: str
) -> None:
    assert complaint("retrieve", "--address", address, *options, code=code).startswith(error)


def test_options_give_the_request_of_the_page(repository: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "request.json").write_text('{"strict": null}')
    rules = json.loads(the_file(repository / "docs" / "api.md", "rules.json"))
    filters = ["category=travel", "category.any_of=food"]
    filters += ["domain.none_of=casino.example", "domain.unknown=BLOCKED"]
    for at, lax in ((rules["at"], True), ("2026-09-21T16:13:20+02:00", False)):
        given = GivenRequest(str(empty), ["age:=34"], None, None, filters, at, -420, no_strict=lax)
        assert given.message() == request_of_json({**rules, "strict": not lax})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"max_ads":\n oops}', ": no JSON request: Expecting value at line 2, column 2"),
        ("", ": no JSON request: Expecting value at line 1, column 1"),
        ("1" * 9999, ": no JSON request: a number is too long, or lists are nested too deep"),
        ("{}}", ": no JSON request: Extra data at line 1, column 3"),
        (
            '{"user": {"country":\n{"values": [3]}}}',
            ": user.country.values[0]: expected text, got 3",
        ),
    ],
)
def test_a_text_that_is_no_request_is_refused_with_its_file_before_any_call(
    text: str, error: str, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text)
    assert complaint("retrieve", "--request", file) == f"{file}{error}"


def test_options_override_the_file(address: str, tmp_path: Path, requests: Path) -> None:
    request = json.loads(requests.read_text(encoding="utf-8").splitlines()[0])
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**request, "maxAds": 3, "max_ads": 3}, indent=2))
    options = ("--profile", "reduced", "--user", "shoe_size=44", "--user", "gender=", "--no-strict")
    shown = printed("retrieve", "--address", address, "--request", file, *options, "--json")
    reply = json.loads(shown)
    assert (reply["profile"], reply["ignored_names"]) == ("reduced", ["shoe_size"])
    assert reply["counts"]["sids_generated"] <= 4
    assert len(reply["ad_ids"]) <= 3
    file.write_text(json.dumps({**request, "profile": "reduced"}))
    cleared = printed(
        "retrieve", "--address", address, "--request", file, "--profile", "", "--json"
    )
    assert json.loads(cleared)["profile"] == "full"


def test_a_table_that_does_not_have_the_ads_says_so(
    address: str, requests: Path, serving_files: ServingFiles, tmp_path: Path
) -> None:
    table = tmp_path / "ads.parquet"
    pq.write_table(pa.table({"ad_id": [1], "title": ["one"], "category": ["food"]}), table)
    asked = ("retrieve", "--address", address, "--request", requests, "--max-ads", "9")
    shutil.copy(serving_files.catalogue / "targeting.yaml", tmp_path)
    given = ("--user", "country=XX", "--user", "country=US", "--filter", "category.none_of=food,x")
    shown = printed(*asked, "--data", tmp_path, *given)
    assert "so no ad includes them: country=XX\n" in shown
    assert shown.endswith("no ad of the tables has these filter values: category=x\n")
    absent = r"^ +\d+\. no usable row in the ads tables \(ad \d+, p\(SID\) ="
    assert len(re.findall(absent, shown, re.M)) == 9
    table.write_bytes(b"text")
    assert f"{table}: not a readable Parquet file: " in complaint(*asked, "--data", tmp_path)
