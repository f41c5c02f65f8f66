"""Requests at the edge of sense: each is answered, or refused in words for its sender."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from grace.index.builder import BuildSpec, build
from support.retrieve_calls import Caller, Outcome, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

NOBODY = {"user": {"country": {"values": ["Atlantis"]}}}


@pytest.fixture(scope="module")
def targeted_files(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> ServingFiles:
    """The tiny catalogue's ads that name countries: nobody from elsewhere may see any of them."""
    folder = tmp_path_factory.mktemp("targeted")
    ads = pq.read_table(serving_files.folder / "catalogue" / "ads.parquet")
    pq.write_table(ads.filter(pc.is_valid(ads["country"])), folder / "ads.parquet")
    targeting = serving_files.folder / "catalogue" / "targeting.yaml"
    snapshots = folder / "snapshots"
    build(
        BuildSpec((folder / "ads.parquet",), targeting, snapshots), lambda step, done, total: None
    )
    return replace(serving_files, folder=folder, snapshots=snapshots)


@pytest.fixture(scope="module")
def server(targeted_files: ServingFiles) -> Iterator[ServerProcess]:
    with ServerProcess(targeted_files.write_config()) as started:
        yield started


@pytest.fixture
def caller(server: ServerProcess) -> Iterator[Caller]:
    with counted_calls(server) as calling:
        yield calling


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert (outcome.code, outcome.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_field")
    for word in words:
        assert word in outcome.text


def test_a_user_for_whom_no_ad_is_eligible_gets_an_empty_ok(
    caller: Caller, targeted_files: ServingFiles
) -> None:
    features = targeted_files.requests[0]["features"]
    response = caller.call(message({**NOBODY, "features": features})).response
    assert not response.ad_ids
    assert not response.scores
    assert (response.counts.ads_matched, response.counts.ads_returned) == (0, 0)
    assert not response.truncated
    some = caller.call(message(targeted_files.requests[0])).response
    assert some.ad_ids


def test_a_request_that_excludes_all_its_ads_gets_an_empty_ok(
    caller: Caller, targeted_files: ServingFiles
) -> None:
    request = {**targeted_files.requests[0], "max_ads": 10_000}
    ads = caller.call(message(request)).response.ad_ids
    denied = caller.call(message(request, exclude_ads=[str(ad) for ad in ads])).response
    assert ads
    assert not denied.ad_ids


def test_an_empty_request_is_a_request(caller: Caller) -> None:
    response = caller.call(b"").response
    assert response.profile == "full"
    assert response.snapshot_version


@pytest.mark.parametrize("location", [{}, {"location": {"values": []}}], ids=["absent", "empty"])
def test_a_user_without_locations_sees_only_ads_that_ask_for_none(
    caller: Caller, targeted_files: ServingFiles, location: dict[str, Any]
) -> None:
    user = {**targeted_files.requests[0]["user"], **location}
    if not location:
        del user["location"]
    response = caller.call(message(targeted_files.requests[0], user=user)).response
    table = pq.read_table(targeted_files.folder / "ads.parquet", columns=["ad_id", "location"])
    asking = set(table.filter(pc.is_valid(table["location"]))["ad_id"].to_pylist())
    assert not asking & set(response.ad_ids)


@pytest.mark.parametrize(
    ("count", "limit"), [(10_000, "limits.values_per_name"), (65, "64")], ids=str
)
def test_too_many_locations_are_refused_and_the_limit_is_named(
    caller: Caller, count: int, limit: str
) -> None:
    user = {"location": {"values": [f"somewhere/{i}" for i in range(count)]}}
    assert_refused(caller.call(message({"user": user})), "user.location", str(count), limit)


def test_unknown_names_are_ignored_and_told_and_unknown_values_match_no_rule(
    caller: Caller, targeted_files: ServingFiles
) -> None:
    request = targeted_files.requests[0]
    known = caller.call(message(request)).response
    user = {**request["user"], "shoe_size": {"values": ["43"]}}
    features = {**request["features"], "bags": {"colours": {"ids": ["5"]}}}
    response = caller.call(message(request, user=user, features=features)).response
    assert list(response.ad_ids) == list(known.ad_ids)
    assert set(response.ignored_names) == {"shoe_size", "bags.colours"}
    unknown = {**request["user"], "location": {"values": ["the moon", "mars"]}}
    assert caller.call(message(request, user=unknown)).ok


@pytest.mark.parametrize("name", ["hour", "nobody_knows"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused_by_path(caller: Caller, name: str, number: str) -> None:
    features = {"dense": {name: {"values": [number]}}}
    assert_refused(caller.call(message({"features": features})), f"features.dense.{name}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_ads": 10_001}, ("max_ads", "10001", "10000", "limits.max_ads")),
        ({"profile": "huge"}, ("profile", "huge", "full", "reduced")),
        ({"priority": "URGENT"}, ("priority", "URGENT", "NORMAL", "LOW")),
        ({"request_id": "x" * 129}, ("request_id", "128", "limits.request_id_bytes")),
        (
            {"exclude_ads": [str(i) for i in range(10_001)]},
            ("exclude_ads", "10001", "limits.exclude_ads"),
        ),
        ({"user": {"location": {"values": ["*"]}}}, ("user.location", "reserved")),
        ({"user": {"location": {"values": ["x" * 1025]}}}, ("user", "limits.value_bytes")),
        (
            {"user": {f"n{i}": {} for i in range(257)}},
            ("user", "257", "limits.names"),
        ),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_is_beyond_a_limit_is_refused_in_its_senders_words(
    caller: Caller, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert_refused(caller.call(message(fields)), *words)


def test_the_largest_that_is_allowed_is_answered(
    caller: Caller, targeted_files: ServingFiles
) -> None:
    request = targeted_files.requests[0]
    user = {**request["user"], "location": {"values": [f"somewhere/{i}" for i in range(64)]}}
    response = caller.call(message(request, user=user, max_ads=10_000)).response
    assert not response.truncated
