"""A request in JSON: what protobuf's JSON form allows is taken, everything else has its place."""

import json
from types import MappingProxyType
from typing import Any

import pytest

from grace.client import request_of_json
from grace.configs.errors import RequestError


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "request: expected an object, got a list"),
        ('{"maxads": 3}', "request: unknown key 'maxads'; known: request_id, model, sid_space, "),
        ('{"features": {"dens": {}}}', "features: unknown key 'dens'; known: dense, categorical,"),
        ('{"features": {"bags": {"b": {"id": []}}}}', "features.bags.b: unknown key 'id'; known"),
        ('{"user": {"country": ["US"]}}', "user.country: expected an object, got a list"),
        ('{"user": {"country": null}}', "user.country: expected an object, got null"),
        ('{"user": {"country": {"values": "US"}}}', "user.country.values: expected a list, got '"),
        ('{"user": {"age": {"values": ["a", 3]}}}', "user.age.values[1]: expected text, got 3"),
        ('{"user": {"age": {"values": [null]}}}', "user.age.values[0]: expected text, got null"),
        ('{"user": {"age": {"values": ["\\ud800"]}}}', "user.age.values[0]: expected text, got '"),
        ('{"user": {"\\ud800": {"values": []}}}', "user: the name '\\ud800' is no text"),
        ('{"user": {"a\\nb": {"values": 1}}}', "user.'a\\nb'.values: expected a list, got 1"),
        ('{"request_id": {}}', "request_id: expected text, got an object"),
        ('{"include_sids": "true"}', "include_sids: expected true or false, got 'true'"),
        ('{"max_ads": "many"}', "max_ads: expected an integer, got 'many'"),
        ('{"max_ads": 1.5}', "max_ads: expected an integer, got 1.5"),
        ('{"max_ads": true}', "max_ads: expected an integer, got true"),
        ('{"max_ads": " 3"}', "max_ads: expected an integer, got ' 3'"),
        ('{"max_ads": NaN}', "max_ads: expected an integer, got NaN"),
        ('{"maxAds": -3}', "maxAds: -3 is not one of 0 to 4294967295"),
        ('{"max_ads": 4294967296}', "max_ads: 4294967296 is not one of 0 to 4294967295"),
        (
            '{"exclude_ads": [7, "9223372036854775808"]}',
            "exclude_ads[1]: '9223372036854775808' is not one of -9223372036854775808 to 922337203",
        ),
        (
            '{"features": {"sequences": {"clicks": {"side": {"action": {"ids": [0, []]}}}}}}',
            "features.sequences.clicks.side.action.ids[1]: expected an integer, got a list",
        ),
        (
            '{"features": {"sequences": {"clicks": {"sids": [-1]}}}}',
            "features.sequences.clicks.sids[0]: -1 is not one of 0 to 4294967295",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [1, "noon"]}}}}',
            "features.dense.hour.values[1]: expected a number, got 'noon'",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [1e39]}}}}',
            "features.dense.hour.values[0]: 1e+39 is not one of -3.4e38 to 3.4e38",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [Infinity]}}}}',
            "features.dense.hour.values[0]: Infinity is not one of -3.4e38 to 3.4e38",
        ),
        (
            '{"features": {"dense": {"hour": {"values": [' + "9" * 63 + "]}}}}",
            "features.dense.hour.values[0]: " + "9" * 63 + " is not one of",
        ),
    ],
)
def test_a_fault_is_told_with_its_path_and_value(text: str, error: str) -> None:
    with pytest.raises(RequestError) as refused:
        request_of_json(json.loads(text))
    assert str(refused.value).startswith(error)
    assert "\n" not in str(refused.value)


def test_a_long_value_is_told_by_its_beginning() -> None:
    with pytest.raises(RequestError) as refused:
        request_of_json({"max_ads": "x" * 9999})
    assert len(str(refused.value)) < 111


def test_what_protobuf_itself_refuses_is_told_in_one_line() -> None:
    with pytest.raises(RequestError, match=r"^request: .*[^.]$"):
        request_of_json({"user": MappingProxyType({})})


@pytest.mark.parametrize(
    ("values", "field", "parsed"),
    [
        ({"max_ads": "7"}, "max_ads", 7),
        ({"max_ads": 7.0}, "max_ads", 7),
        ({"max_ads": 2**32 - 1}, "max_ads", 2**32 - 1),
        ({"max_ads": None}, "max_ads", 0),
        ({"includeSids": True}, "include_sids", True),
        ({"exclude_ads": [-(2**63), str(2**63 - 1)]}, "exclude_ads", [-(2**63), 2**63 - 1]),
        ({"request_id": "país\u2028"}, "request_id", "país\u2028"),
    ],
)
def test_what_protobuf_allows_is_taken(values: dict[str, Any], field: str, parsed: Any) -> None:
    assert getattr(request_of_json(values), field) == parsed


def test_numbers_that_are_not_finite_are_sent_for_the_server_to_check() -> None:
    given = ["NaN", "Infinity", "-Infinity", "-1.5e3", 2, 0.5, "3"]
    request = request_of_json({"features": {"dense": {"hour": {"values": given}}}})
    sent = list(map(str, request.features.dense["hour"].values))
    assert sent == ["nan", "inf", "-inf", "-1500.0", "2.0", "0.5", "3.0"]
