"""Entities of requests, and unknown names: through the stages, and on a real server."""

from typing import Any

import pytest
import torch

from grace.server.engine.serving_pair import ServingPair
from support.oracle import RawAd
from support.serving_files import ServingFiles
from support.stage_cases import answer, load_cpu_pair, raw_ads, replies_of, request_batch


@pytest.fixture(scope="module")
def pair(serving_files: ServingFiles) -> ServingPair:
    torch.set_num_threads(1)
    return load_cpu_pair(serving_files.snapshots, serving_files.checkpoint)


@pytest.fixture(scope="module")
def catalogue(serving_files: ServingFiles, pair: ServingPair) -> list[RawAd]:
    return raw_ads(serving_files.folder / "catalogue" / "ads.parquet", pair.snapshot.schema)


def test_entities_are_excluded_and_limited(
    pair: ServingPair, catalogue: list[RawAd], serving_files: ServingFiles
) -> None:
    entities_of = {ad.ad_id: ad.entities for ad in catalogue}
    request = serving_files.requests[0] | {"request_id": "all", "max_ads": 1000}
    whole = replies_of(answer(request_batch(pair, [request], 4)))["all"]
    campaign = next(
        entities_of[ad]["campaign"] for ad in whole.ad_ids if "campaign" in entities_of[ad]
    )
    advertiser = entities_of[whole.ad_ids[0]]["advertiser"]
    exclude = {"campaign": {"ids": [campaign, 2**62]}, "brand": {"ids": [7]}}
    at_most = {"advertiser": 1, "shop": 3}
    excluding = request | {"request_id": "excluding", "exclude": exclude}
    limiting = request | {"request_id": "limiting", "at_most": at_most}
    neither = request | {"request_id": "neither", "at_most": {"advertiser": 0}}
    got = replies_of(answer(request_batch(pair, [excluding, limiting, request, neither], 4)))
    assert got["all"] == whole
    kept = [ad for ad in whole.ad_ids if entities_of[ad].get("campaign") != campaign]
    assert list(got["excluding"].ad_ids) == kept
    assert list(got["excluding"].ignored_names) == [*whole.ignored_names, "brand"]
    counts = got["excluding"].counts
    assert counts.ads_excluded == len(whole.ad_ids) - len(kept) > 0
    assert counts.ads_matched == counts.ads_returned == len(kept)
    best: dict[int, int] = {}
    for ad in whole.ad_ids:
        best.setdefault(entities_of[ad]["advertiser"], ad)
    assert list(got["limiting"].ad_ids) == list(best.values())
    assert list(got["limiting"].ignored_names) == [*whole.ignored_names, "shop"]
    counts = got["limiting"].counts
    assert counts.ads_limited == len(whole.ad_ids) - len(best) > 0
    assert counts.ads_matched == len(whole.ad_ids)
    assert not got["limiting"].truncated
    assert list(got["neither"].ad_ids) == []
    assert not got["neither"].truncated
    assert whole.counts.ads_excluded == whole.counts.ads_limited == 0
    assert advertiser in best


@pytest.mark.parametrize(
    ("field", "value", "name", "known"),
    [
        ("user", {"shoe_size": {"values": ["42"]}}, "shoe_size", "country, "),
        ("features", {"bags": {"hats": {"ids": ["1"]}}}, "bags.hats", "hour, "),
        ("exclude", {"advertizer": {"ids": ["3"]}}, "advertizer", "campaign, "),
        ("at_most", {"shop": 3}, "shop", "advertiser, "),
    ],
)
def test_a_strict_request_with_an_unknown_name_fails_alone(
    pair: ServingPair,
    serving_files: ServingFiles,
    field: str,
    value: Any,
    name: str,
    known: str,
) -> None:
    odd = serving_files.requests[0] | {"request_id": "odd", field: value}
    strict = odd | {"request_id": "strict", "strict": True}
    good = serving_files.requests[1] | {"request_id": "good", "strict": True}
    answered = answer(request_batch(pair, [strict, good, odd], 4))
    assert sorted(replies_of(answered)) == ["good", "odd"]
    (failure,) = answered.input.failures
    assert failure.request.retrieval.request_id == "strict"
    assert (failure.error.reason, failure.error.field) == ("invalid_field", "strict")
    start = f"{name}: no such name, and the request is strict; known: "
    assert failure.error.text.startswith(start)
    assert known in failure.error.text
