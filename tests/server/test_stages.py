"""The four stages on the tiny catalogue: who gets which ads, who fails alone, and what stops do.

A batch reads the clock once: its masks, its exact test, its replies and Explain share that time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from grace.index.builder import build
from grace.index.targeting.schema import CLOCKS, Attribute, Flight, TargetingSchema
from grace.proto.retrieval_pb2 import Counts, ExplainResponse, RetrieveResponse
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import Span
from grace.server.stages import stages
from grace.server.stages.explanation import explain_ad
from grace.server.stages.stages import STAGES
from support.builds import build_spec, silent
from support.oracle import RawAd
from support.plain_replies import assert_plain
from support.poisoned_model import poisoned_checkpoint, poisoned_request
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import (
    GENERATION,
    JsonRequest,
    answer,
    load_cpu_pair,
    raw_ads,
    replies_of,
    request_batch,
    stop,
)
from support.strategies import Case

BUCKETS = GENERATION.batch_buckets
AT = 1_793_500_000_000  # so that two replies say the same time


@pytest.fixture(scope="module")
def catalogue(serving_files: ServingFiles, pair: ServingPair) -> list[RawAd]:
    return raw_ads(serving_files.catalogue / "ads.parquet", pair.snapshot.schema)


def replies(
    pair: ServingPair, requests: Sequence[JsonRequest], bucket: int
) -> dict[str, RetrieveResponse]:
    return replies_of(answer(request_batch(pair, requests, bucket)))


def changed(request: JsonRequest, **values: Any) -> dict[str, Any]:
    return {**request, **values}


def drawn(rng: np.random.Generator, catalogue: list[RawAd], request: JsonRequest) -> JsonRequest:
    """A request that excludes and limits some ads and entities, known or not."""
    some = [catalogue[place] for place in rng.integers(len(catalogue), size=len(catalogue) // 3)]
    given = {
        "exclude_ads": [str(ad.ad_id) for ad in some],
        "exclude": {
            "campaign": {"ids": [*{ad.entities.get("campaign", 5) for ad in some[:3]}, 2**62]},
            "brand": {"ids": [7]},
        },
        "at_most": {"advertiser": int(rng.integers(3)), "campaign": 1, "shop": 3},
    }
    kept = {name: value for name, value in given.items() if rng.random() < 0.4}
    return changed(request, max_ads=int(rng.choice([3, 1000])), include_sids=True, **kept)


@pytest.mark.parametrize("profile", GENERATION.profiles)
def test_replies_are_those_that_the_plain_rules_give_for_the_generated_sids(
    pair: ServingPair, catalogue: list[RawAd], serving_files: ServingFiles, profile: str
) -> None:
    """Updates change what is stopped from batch to batch."""
    rng, total = np.random.default_rng(7), Counter[str]()
    ids = np.array([ad.ad_id for ad in catalogue])
    for start, share in zip(
        range(0, 128, 16), (0.0, 0.3, 0.9, 0.1, 0.3, 1.0, 0.0, 0.3), strict=True
    ):
        stopped = set(rng.choice(ids, int(share * len(ids)), replace=False).tolist())
        stop(pair, stopped)
        requests = [
            drawn(rng, catalogue, changed(request, request_id=f"r{place}"))
            for place, request in enumerate(serving_files.requests[start % 64 :][:16])
        ]
        got = replies_of(answer(request_batch(pair, requests, 16, profile)))
        for request in requests:
            reply = got[request["request_id"]]
            counts = assert_plain(pair.snapshot.schema, catalogue, request, reply, stopped)
            found = {each.name: value for each, value in counts.ListFields()}
            total.update(found | {"ads_failed": sum(counts.ads_failed.values())})
    stop(pair, ())
    assert min(total.values()) > 31, total
    assert len(total) == len(Counts.DESCRIPTOR.fields)


def test_a_reply_says_whether_its_own_request_was_degraded(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    small, given_less = (
        changed(serving_files.requests[0], request_id=name) for name in ("small", "given less")
    )
    batch = request_batch(pair, [small, given_less], 2, "reduced")
    batch.requests[1].degraded_to = "reduced"
    got = replies_of(answer(batch))
    assert {name: reply.degraded for name, reply in got.items()} == {
        "small": False,
        "given less": True,
    }
    assert {reply.profile for reply in got.values()} == {"reduced"}
    assert list(got["small"].ad_ids) == list(got["given less"].ad_ids)


def test_what_decoding_let_through_is_still_matched_exactly(
    pair: ServingPair, catalogue: list[RawAd], serving_files: ServingFiles
) -> None:
    untargeted = replace(pair, index=pair.index.without_matchers())
    demanding = {each.name: {"values": [*each.values]} for each in pair.snapshot.schema.attributes}
    request = changed(serving_files.requests[0], user=demanding, max_ads=1000, include_sids=True)
    (reply,) = replies(untargeted, [request], 1).values()
    counts = assert_plain(pair.snapshot.schema, catalogue, request, reply, exact=False)
    assert counts.ads_generated > counts.ads_matched


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda n: f"bucket={n}")
def test_a_request_gets_the_same_reply_at_every_row_and_beside_any_neighbours(
    pair: ServingPair, serving_files: ServingFiles, bucket: int
) -> None:
    rng = np.random.default_rng(bucket)
    wanted = changed(serving_files.requests[3], include_sids=True, at=AT)
    alone = replies(pair, [wanted], bucket)[wanted["request_id"]]
    others = [r for r in serving_files.requests if r["request_id"] != wanted["request_id"]]
    for row in range(bucket):
        neighbours = [others[i] for i in rng.permutation(len(others))[: bucket - 1]]
        batch = [*neighbours[:row], wanted, *neighbours[row:]]
        assert replies(pair, batch, bucket)[wanted["request_id"]] == alone


FAULTY: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "user": ({"user": {"country": {"values": ["US", "*"]}}}, "invalid_field", "user.*.values"),
    "features": (
        {"features": {"dense": {"hour": {"values": [1, 2]}}}},
        "invalid_field",
        "features.dense.hour.values",
    ),
    "model": ({"model": "0" * 16}, "wrong_model", "model"),
    "sid_space": ({"sid_space": "another"}, "wrong_sid_space", "sid_space"),
    "not_finite": (poisoned_request({}), "not_finite", None),
    **{
        f"strict: {names}": ({field: value, "strict": True}, "invalid_field", "strict")
        for names, field, value in (
            ("shoe_size, known: country", "user", {"shoe_size": {"values": ["42"]}}),
            ("bags.hats, known: hour", "features", {"bags": {"hats": {"ids": ["1"]}}}),
            ("advertizer, known: campaign", "exclude", {"advertizer": {"ids": ["3"]}}),
            ("shop, known: advertiser", "at_most", {"shop": 3}),
        )
    },
}


def test_every_kind_of_fault_at_once_leaves_the_others_as_they_are(
    serving_files: ServingFiles, tmp_path: Path
) -> None:
    poisoned_pair = load_cpu_pair(serving_files.snapshots, poisoned_checkpoint(tmp_path))
    good = [{**serving_files.requests[row], "strict": True, "at": AT} for row in range(30, 34)]
    bad = [
        {**serving_files.requests[40], **change, "request_id": name}
        for name, (change, _, _) in FAULTY.items()
    ]
    mixed = [*bad[:2], good[0], bad[2], *good[1:3], *bad[3:], good[3]]
    answered = answer(request_batch(poisoned_pair, mixed, 16))
    failures = (*answered.input.failures, *answered.failures)
    texts = {each.request.retrieval.request_id: each.error.text for each in failures}
    for text, (unknown, known) in (
        (texts[name], name.removeprefix("strict: ").split(", known: "))
        for name in FAULTY
        if "known" in name
    ):
        assert text.startswith(f"{unknown}: no such name, and the request is strict; known: ")
        assert f"{known}, " in text
    failed = {f.request.retrieval.request_id: (f.error.reason, f.error.field) for f in failures}
    assert failed == {name: (reason, field) for name, (_, reason, field) in FAULTY.items()}
    got = replies_of(answered)
    assert got == replies(poisoned_pair, good, 16)
    assert answered.counts.returned.tolist() == [len(reply.ad_ids) for reply in got.values()]


def test_times_of_a_reply_come_from_the_spans(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    batch = request_batch(pair, [serving_files.requests[0]], 1)
    (pending,) = batch.requests
    arrived = perf_counter() - 10.0
    batch = replace(batch, requests=(replace(pending, arrived=arrived),))
    spans = (
        Span("input", arrived + 1.5, arrived + 2.0),
        Span("features", arrived + 2.25, arrived + 3.0),
        Span("generate", arrived + 3.0, arrived + 7.0),
    )
    (one,) = answer(batch, spans=spans).answers
    times = RetrieveResponse.FromString(one.reply).timings
    assert (times.input_us, times.features_us, times.generate_us) == (500_000, 750_000, 4_000_000)
    assert 0 < times.post_us < 5_000_000
    # 10 s and a little have passed since it arrived, of which 5.25 in the stages.
    assert 4_750_000 <= times.queue_us < 10_000_000


DAY = 24 * 3_600_000
MONDAY = 1_767_571_200_000  # 5 January 2026
DAYS = 7
SCHEMA = TargetingSchema(
    attributes=(
        Attribute("weekday", tuple(map(str, range(CLOCKS["day_of_week"]))), clock="day_of_week"),
    ),
    sets=(),
    hash_seed=7,
    flights=(Flight("flight"),),
)
MODEL = model_spec()
ADS = tuple(
    RawAd(kind + day, (day, 1, 2, kind // 100), rules=rules)
    for day in range(DAYS)
    for kind, rules in (
        (100, {"flight": (MONDAY + day * DAY, MONDAY + (day + 1) * DAY)}),
        (200, {"weekday": (frozenset({str(day)}), None)}),
    )
)
"""Ad 103 flies on Thursday, and ad 203 is for Thursdays."""


@pytest.fixture(scope="module")
def daily(serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory) -> ServingPair:
    case = Case(SCHEMA, MODEL.vocab_sizes, ADS, ())
    spec = build_spec(tmp_path_factory.mktemp("daily"), case)
    build(replace(spec, sid_space=MODEL.sid_space), silent)
    return load_cpu_pair(spec.root, serving_files.checkpoint)


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is a day later each time that it is read."""
    times = count(MONDAY, DAY)
    monkeypatch.setattr(stages, "time_ns", lambda: next(times) * 1_000_000)


@pytest.mark.usefixtures("days")
def test_masks_and_replies_share_the_time_of_their_batch_and_requests_may_say_another(
    daily: ServingPair,
) -> None:
    """One request is refused, so that the others are read twice."""
    usual = {"request_id": "now", "user": {}, "max_ads": 99, "include_sids": True}
    later = {**usual, "request_id": "on Thursday", "at": str(MONDAY + 4 * DAY - 1)}
    behind = {**usual, "request_id": "an hour behind", "utc_offset_minutes": -60}
    refused = {**usual, "request_id": "refused", "model": "another"}
    strict = {**usual, "request_id": "strict", "strict": True, "user": {"week": {"values": ["1"]}}}
    for day in range(3):
        requests = [refused, usual, later, strict, behind]
        got = replies_of(answer(request_batch(daily, requests, bucket=8)))
        now, then = MONDAY + day * DAY, MONDAY + 4 * DAY - 1
        assert {n: reply.at for n, reply in got.items()} == dict.fromkeys(got, now) | {
            "on Thursday": then
        }
        for request in (usual, later, behind):
            assert_plain(SCHEMA, ADS, request, got[str(request["request_id"])])
        assert set(got["now"].ad_ids) == {100 + day, 200 + day}
        assert set(got["on Thursday"].ad_ids) == {103, 203}
        assert set(got["an hour behind"].ad_ids) == {100 + day, 200 + (day - 1) % DAYS}


def outcome(pair: ServingPair, ad_id: int, at: int) -> str:
    request = {"user": {}, "max_ads": 99, "at": str(at)}
    batch = request_batch(pair, [request], bucket=1)
    explained = explain_ad(ad_id, batch, STAGES, lambda _: {}, lambda: None)
    return ExplainResponse.Outcome.Name(explained.outcome).removeprefix("OUTCOME_")


@pytest.mark.usefixtures("days")
def test_an_explanation_reads_the_clock_once_unless_its_request_says_the_time(
    daily: ServingPair,
) -> None:
    assert [outcome(daily, 100 + day, at=0) for day in range(3)] == ["RETURNED"] * 3
    assert [outcome(daily, 203 + day, at=0) for day in range(3)] == ["RETURNED"] * 3
    assert outcome(daily, 105, at=0) == "NOT_ELIGIBLE"
    for at, expected in ((-1, "NOT_ELIGIBLE"), (0, "RETURNED"), (DAY, "NOT_ELIGIBLE")):
        assert outcome(daily, 103, MONDAY + 3 * DAY + at) == expected
        assert outcome(daily, 203, MONDAY + 3 * DAY + at) == expected
