"""The Python client's plain values and JSON become the API's messages, replies typed results."""

import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from grace.client import (
    Ad,
    Ads,
    Client,
    Events,
    InputError,
    RequestError,
    RequestFields,
    RetrieveResult,
    request_of,
    request_of_json,
)
from grace.client.request_json import filled
from grace.proto.retrieval_pb2 import (
    Features,
    Filter,
    RetrieveRequest,
    RetrieveResponse,
    Sids,
    UpdateAdsRequest,
)
from support.documents import the_file
from support.known_server import known_server
from support.server_process import ServerProcess

THREE: Any = 3
CLICKS = [(37, 53, 12, 43), (37, 44, 7, 40)]
WHOLE: RequestFields = {
    "request_id": "r1",
    "model": "",
    "sid_space": "synth-tiny-1",
    "user": {
        "country": "US",
        "age": ["25-34"],
        "gender": None,
        "location": ["us", "us/co", "us/co/denver"],
    },
    "dense": {"hour": 17},
    "categorical": {"device": 4},
    "bags": {"pages": [90071992547409931, 7]},
    "sequences": {"clicks": Events(CLICKS, [1788030184199, 1788155016167], {"action": [1, 2]})},
    "max_ads": 3,
    "profile": "full",
    "priority": "NORMAL",
    "exclude_ads": [123, 124],
    "include_sids": True,
    "exclude": {"campaign": [9, 12]},
    "at_most": {"advertiser": 3},
    "strict": True,
}
"""The request of docs/api.md."""


RULES: RequestFields = {
    "user": {"age": 34},
    "at": datetime(2026, 9, 21, 16, 53, 20, tzinfo=timezone(timedelta(hours=2, minutes=40))),
    "utc_offset_minutes": -420,
    "filters": {
        "category": {"any_of": ["travel", "food"]},
        "domain": {"none_of": "casino.example", "unknown": False},
    },
    "strict": False,
}
"""The other request of docs/api.md."""


PROMPT: RequestFields = {
    "user": {"country": "US"},
    "tokens": {"prompt": [151644, 872, 198, 151669]},
    "strict": False,
}
"""Its request for a causal model."""

REQUESTS = {"request.json": WHOLE, "rules.json": RULES, "prompt.json": PROMPT}


def test_plain_values_are_the_documented_json(repository: Path) -> None:
    for name, fields in REQUESTS.items():
        page = json.loads(the_file(repository / "docs" / "api.md", name))
        assert request_of(fields) == request_of_json(page) == ParseDict(page, RetrieveRequest())
    passing: Any = {"at": 1790000000000, "filters": {"category": {"unknown": True}}}
    assert request_of(passing).at == request_of(RULES).at
    assert request_of(passing).filters["category"] == Filter(unknown=Filter.PASSES)
    short: RequestFields = {"user": {"age": []}, "sequences": {"views": CLICKS}}
    asked = {"user": {"age": {}}, "features": {"sequences": {"views": {"sids": sum(CLICKS, ())}}}}
    assert request_of({**short, "strict": False}) == ParseDict(asked, RetrieveRequest())
    assert request_of({}) == RetrieveRequest(strict=True)


def test_every_field_of_a_request_has_a_plain_value() -> None:
    fields = {field.name for field in RetrieveRequest.DESCRIPTOR.fields}
    kinds = {field.name for field in Features.DESCRIPTOR.fields}
    given = set().union(*REQUESTS.values())
    assert fields - {"features"} | kinds == set(RequestFields.__annotations__) == given


def of_numpy(value: Any) -> Any:
    """Return the same value, made of NumPy's scalars and arrays wherever those can be."""
    if isinstance(value, dict):
        return {name: of_numpy(each) for name, each in value.items()}
    if isinstance(value, Events):
        return Events(*map(of_numpy, (value.sids, value.timestamps_ms, value.side)))
    if isinstance(value, list) and value:
        return np.array(value)
    kinds = {bool: bool, int: np.int64, float: np.float64, str: np.str_}
    return kinds.get(type(value), lambda same: same)(value)


def test_values_of_numpy_are_as_good_as_python_s() -> None:
    for request in REQUESTS.values():
        assert request_of(of_numpy(request)) == request_of(request)
    flat: Any = {"sequences": {"views": np.array(CLICKS, np.uint16).ravel()}}
    sids = [token for sid in CLICKS for token in sid]
    assert request_of(flat) == request_of({"sequences": {"views": [sids]}})
    assert request_of({"exclude": {"campaign": {9}}}) == request_of({"exclude": {"campaign": 9}})


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"usr": 1}, r"request: unknown field 'usr'; known: request_id, model, sid_space, user, "),
        ({"sequences": {"clicks": [(1, 2), (3,)]}}, r"sequences: SIDs of 1, 2 tokens; all have"),
        ({"sequences": {"clicks": Events([], side=THREE)}}, r"features\.sequences\.clicks\.side:"),
        (
            {"at": datetime(2026, 9, 21, 13)},  # noqa: DTZ001
            r"at: 2026-09-21T13:00:00 has no time zone; give it one, as in datetime\.now\(UTC\)$",
        ),
        ({"at": 1790000000}, r"at: 1790000000 is not between 1990 and 2100; send milliseconds "),
        ({"at": np.datetime64("2026-09-21", "ns")}, r"at: 1789948800000000000 is not between "),
        ({"user": {"age": 2**53 + 1}}, r"user\.age\.number: 9007199254740993 is beyond 2\^53, "),
        ({"filters": {"category": {"any_of": ()}}}, r"filters\.category\.any_of: is empty; name "),
        ({"user": {"age": 10**400}}, r"user\.age\.number: 10+\.\.\. is not within -1\.8e\+308 to"),
        (
            {"filters": {"category": {"unknown": "BLOCK"}}},
            r"filters\.category\.unknown: expected one of UNKNOWN_UNSPECIFIED, PASSES, BLOCKED,",
        ),
    ],
)
def test_a_fault_has_its_path_before_any_call(fields: Any, fault: str) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(RequestError, match=f"^{fault}"):
        client.retrieve(**fields, timeout=60.0)


def test_a_request_is_a_message_json_or_fields_but_not_two_of_them() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(InputError, match=r"^a request and fields \(max_ads\); put these into the"),
    ):
        client.retrieve(RetrieveRequest(), max_ads=3, timeout=60.0)


def result_of(reply: RetrieveResponse) -> RetrieveResult:
    """Return the result of a real call that gets this reply."""
    answer = reply.SerializeToString()
    with (
        known_server(lambda _request, _context: answer, warm_up=0) as address,
        Client(address) as client,
    ):
        return client.retrieve(timeout=60.0)


def test_ten_thousand_ads_are_those_of_the_message_however_they_are_read() -> None:
    number = 10_000
    ad_ids = [(place * 7919 - 5000) << 30 for place in range(number)]
    scores = [float(np.float32(-place / 7)) for place in range(number)]
    tokens, of_ads = list(range(400, 400 + 4 * 501)), [place % 501 for place in range(number)]
    sids = Sids(length=4, tokens=tokens, scores=scores[:501], sid_of_ad=of_ads)
    for asked in None, sids:
        result = result_of(RetrieveResponse(ad_ids=ad_ids, scores=scores, sids=asked))
        expected = [
            Ad(ad_id, score, tuple(tokens[4 * sid : 4 * sid + 4]) if asked else None)
            for ad_id, score, sid in zip(ad_ids, scores, of_ads, strict=True)
        ]
        assert list(result.ads) == expected
        assert list(result.ads[-2:1:-3]) == expected[-2:1:-3]
        assert [result.ads[place] for place in (0, 7, -1)] == [expected[x] for x in (0, 7, -1)]
        assert repr(result.ads).startswith(f"<10000 ads: Ad(ad_id={ad_ids[0]}, ")
        for array in result.ads.ad_ids, result.ads.scores:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        with pytest.raises(IndexError):
            result.ads[number]
        assert (result.sids is None) == (asked is None)
    assert result.sids is not None
    assert result.sids.tokens.tolist() == np.reshape(tokens, (501, 4)).tolist()
    assert result.sids.scores.tolist() == scores[:501]
    assert len(result.sids) == 501


@pytest.mark.subprocess
def test_a_result_has_every_field_of_the_reply(
    healthy_server: ServerProcess, repository: Path
) -> None:
    """The request is the page's; a SID of the result is a click of the next request."""
    request = json.loads(the_file(repository / "docs" / "api.md", "request.json"))
    with Client(healthy_server.address) as client:
        result = assert_type(client.retrieve(request, timeout=60.0), RetrieveResult)
        again = client.retrieve(sequences={"clicks": [result.ads[0].sid or ()]}, timeout=60.0)
    reply = result.message
    assert_type(result.ads, Ads)
    assert (result.request_id, result.snapshot_version, result.profile) == ("r1", 1, "full")
    assert result.ads.ad_ids.tolist() == list(reply.ad_ids) != []
    assert (result.truncated, result.degraded, result.attempts) == (True, False, 1)
    assert result.counts.ads_returned == 3 <= result.counts.ads_matched
    assert result.timings.generate_us > 0
    assert result.checkpoint == again.checkpoint != ""
    assert (again.sids, again.ads[0].sid, again.ignored_names) == (None, None, ())
    for ad in result.ads:
        assert_type(ad.ad_id, int)
        assert ad.probability == math.exp(ad.score)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "request: expected an object, got a list"),
        ('{"maxads": 3}', "request: unknown key 'maxads'; known: request_id, model, sid_space, "),
        ('{"features": {"bags": {"b": {"id": []}}}}', "features.bags.b: unknown key 'id'; known"),
        ('{"user": {"country": ["US"]}}', "user.country: expected an object, got a list"),
        ('{"user": {"age": {"values": ["a", 3]}}}', "user.age.values[1]: expected text, got 3"),
        ('{"user": {"age": {"values": ["\\ud800"]}}}', "user.age.values[0]: expected text, got '"),
        ('{"user": {"\\ud800": {"values": []}}}', "user: expected text, got '\\ud800'"),
        ('{"user": {"a\\nb": {"values": 1}}}', "user.'a\\nb'.values: expected a list, got 1"),
        ('{"request_id": {}}', "request_id: expected text, got an object"),
        ('{"include_sids": "true"}', "include_sids: expected true or false, got 'true'"),
        ('{"max_ads": true}', "max_ads: expected an integer, got true"),
        (f'{{"max_ads": "{"x" * 9999}"}}', "max_ads: expected an integer, got 'xxx"),
        ('{"maxAds": " 3"}', "maxAds: expected an integer, got ' 3'"),
        ('{"max_ads": 4294967296}', "max_ads: 4294967296 is not within 0 to 4294967295"),
        (
            '{"exclude_ads": [7, "9223372036854775808"]}',
            "exclude_ads[1]: '9223372036854775808' is not within -9223372036854775808 to 922337203",
        ),
        (
            '{"features": {"sequences": {"clicks": {"side": {"action": {"ids": [0, []]}}}}}}',
            "features.sequences.clicks.side.action.ids[1]: expected an integer, got a list",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [1, "noon"]}}}}',
            "features.dense.hour.values[1]: expected a number, got 'noon'",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [Infinity]}}}}',
            "features.dense.hour.values[0]: Infinity is not within -3.4e+38 to 3.4e+38",
        ),
    ],
)
def test_a_fault_is_told_with_its_path_and_value(text: str, error: str) -> None:
    with pytest.raises(RequestError) as refused:
        request_of_json(json.loads(text))
    assert str(refused.value).startswith(error)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 333


@pytest.mark.parametrize(
    "values",
    [
        {"max_ads": "7"},
        {"max_ads": 7.0},
        {"max_ads": 2**32 - 1},
        {"max_ads": None},
        {"includeSids": True},
        {"exclude_ads": [-(2**63), str(2**63 - 1)]},
        {"request_id": "país\u2028"},
        {"features": {"dense": {"hour": {"values": ["Infinity"]}}}},
        {
            "features": {
                "dense": {"hour": {"values": ["NaN", "-Infinity", "-1.5e3", 2, ".5", "3."]}}
            }
        },
    ],
    ids=str,
)
def test_what_protobuf_allows_is_taken(values: dict[str, Any]) -> None:
    """The server checks which numbers are finite."""
    parsed = ParseDict(values, RetrieveRequest())
    assert request_of_json(values).SerializeToString() == parsed.SerializeToString()


@pytest.mark.parametrize(
    "values",
    [
        {"sequence": str(2**64 - 1), "kind": "KIND_FULL", "weights": []},
        {"sequence": 2**64 - 1, "kind": 2, "stop": {"ad": {}, "campaign": {"ids": [7, 2**63 - 1]}}},
        {"kind": 7, "weights": [{"ad_id": 1, "weight": 0.5}, {"adId": "2"}], "unweight": ["3", 4]},
        {"resume": {"ad": {"ids": [1, 2.0]}, "shop": {"ids": []}}},
    ],
    ids=str,
)
def test_an_update_is_read_as_protobuf_reads_it(values: dict[str, Any]) -> None:
    parsed = ParseDict(values, UpdateAdsRequest())
    assert filled(UpdateAdsRequest(), values).SerializeToString(deterministic=True) == (
        parsed.SerializeToString(deterministic=True)
    )
