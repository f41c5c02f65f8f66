"""A batch reads the clock once: its masks, its exact test, its replies and Explain share that time.

The clock of these tests is a day later each time that it is read.
"""

from dataclasses import replace
from itertools import count

import pytest

from grace.index.builder import build
from grace.index.targeting.schema import CLOCKS, Attribute, Flight, TargetingSchema
from grace.proto.retrieval_pb2 import ExplainResponse
from grace.server.engine.serving_pair import ServingPair
from grace.server.stages import stages
from grace.server.stages.explanation import explain_ad
from grace.server.stages.stages import STAGES
from support.builds import build_spec, silent
from support.oracle import RawAd
from support.plain_replies import assert_plain
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import answer, load_cpu_pair, replies_of, request_batch
from support.strategies import Case

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


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(MONDAY, DAY)
    monkeypatch.setattr(stages, "time_ns", lambda: next(times) * 1_000_000)


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


def test_an_explanation_reads_the_clock_once_unless_its_request_says_the_time(
    daily: ServingPair,
) -> None:
    assert [outcome(daily, 100 + day, at=0) for day in range(3)] == ["RETURNED"] * 3
    assert [outcome(daily, 203 + day, at=0) for day in range(3)] == ["RETURNED"] * 3
    assert outcome(daily, 105, at=0) == "NOT_ELIGIBLE"
    for at, expected in ((-1, "NOT_ELIGIBLE"), (0, "RETURNED"), (DAY, "NOT_ELIGIBLE")):
        assert outcome(daily, 103, MONDAY + 3 * DAY + at) == expected
        assert outcome(daily, 203, MONDAY + 3 * DAY + at) == expected
