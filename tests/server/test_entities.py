"""Mode `exact`, entities of requests and unknown names, through the stages."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grace.index.builder import BuildSpec, build
from grace.server.engine.serving_pair import ServingPair
from support.oracle import RawAd, eligible
from support.serving_files import ServingFiles
from support.stage_cases import (
    answer,
    load_cpu_pair,
    raw_ads,
    replies_of,
    request_batch,
    stop,
)


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


def test_every_generated_sid_has_an_eligible_live_ad_and_stops_count_from_the_next_batch(
    pair: ServingPair, catalogue: list[RawAd], serving_files: ServingFiles
) -> None:
    rng, schema = np.random.default_rng(7), pair.snapshot.schema
    ids = np.array([ad.ad_id for ad in catalogue])
    for share in (0.0, 0.3, 0.9, 0.1, 0.0):
        stopped = set(rng.choice(ids, int(share * len(ids)), replace=False).tolist())
        stop(pair, stopped)
        for request in serving_files.requests[:4]:
            asked = {**request, "request_id": "r", "max_ads": 1000, "include_sids": True}
            reply = replies_of(answer(request_batch(pair, [asked], 1)))["r"]
            user = {name: given.get("values", []) for name, given in request["user"].items()}
            useful = {
                ad.sid for ad in catalogue if ad.ad_id not in stopped and eligible(schema, ad, user)
            }
            tokens, length = list(reply.sids.tokens), reply.sids.length
            sids = {tuple(tokens[at : at + length]) for at in range(0, len(tokens), length)}
            assert sids <= useful
            assert len(sids) == min(reply.counts.sids_generated, len(useful)) > 0
            assert not stopped.intersection(reply.ad_ids)


def test_with_stops_the_replies_are_those_of_a_catalogue_without_the_ads(
    pair: ServingPair, serving_files: ServingFiles, tmp_path: Path
) -> None:
    folder = serving_files.folder / "catalogue"
    ads = pq.read_table(folder / "ads.parquet")
    stopped = set(ads["ad_id"].to_pylist()[::3])
    kept = tmp_path / "kept.parquet"
    pq.write_table(ads.take([at for at in range(len(ads)) if at % 3]), kept)
    spec = BuildSpec((kept,), folder / "targeting.yaml", tmp_path / "snapshots", version=1)
    build(spec, lambda step, done, total: None)
    smaller = load_cpu_pair(tmp_path / "snapshots", serving_files.checkpoint)
    requests = [
        {**request, "request_id": f"r{place}", "include_sids": True}
        for place, request in enumerate(serving_files.requests[:4])
    ]
    expected = replies_of(answer(request_batch(smaller, requests, 4)))
    stop(pair, stopped)
    got = replies_of(answer(request_batch(pair, requests, 4)))
    stop(pair, ())
    for name, reply in expected.items():
        assert list(got[name].ad_ids) == list(reply.ad_ids)
        assert list(got[name].sids.tokens) == list(reply.sids.tokens)
        assert list(got[name].scores) == pytest.approx(list(reply.scores))


def test_the_status_says_what_the_masks_take(pair: ServingPair) -> None:
    facts, lists = pair.eligibility, pair.snapshot.exact
    assert lists is not None
    masks_of_nodes = 2 * pair.snapshot.trie.num_nodes
    assert facts.eligibility_mask_bytes > 3 * masks_of_nodes
    assert facts.eligibility_list_bytes > lists.leaf_rules.nbytes + lists.leaf_offsets.nbytes
    assert facts.eligibility_ms > 0
