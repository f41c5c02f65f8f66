"""User rows: what a request's attributes become, and what is refused."""

import numpy as np
import pytest

from grace.configs.errors import RequestError
from grace.index.matchers.bloom import value_hash
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")), Attribute("gender", ("f", "m", "?"), missing="?")),
    (TargetSet("location", 256, 4, 3), TargetSet("audience", 64, 2, 64)),
    hash_seed=7,
)
ENCODER = UserEncoder(SCHEMA, (InternedValues.of(["sf", "la"]), InternedValues.of([])))
US, NO, OTHER_COUNTRY, FEMALE, UNKNOWN_GENDER, OTHER_GENDER = 1, 2, 4, 8, 32, 64


@pytest.mark.parametrize(
    ("user", "bits"),
    [
        ({"country": ["US"], "gender": ["f"]}, US | FEMALE),
        ({"country": ["US", "NO", "US"], "gender": ["f"]}, US | NO | FEMALE),
        ({"country": ["ZZ"], "gender": ["x"]}, OTHER_COUNTRY | OTHER_GENDER),
        ({"country": ["US", "ZZ"], "gender": ["f"]}, US | OTHER_COUNTRY | FEMALE),
        ({}, OTHER_COUNTRY | UNKNOWN_GENDER),
        ({"country": [], "gender": []}, OTHER_COUNTRY | UNKNOWN_GENDER),
    ],
    ids=str,
)
def test_known_unknown_and_missing_values_set_their_bits(
    user: dict[str, list[str]], bits: int
) -> None:
    assert ENCODER.encode([user]).bitmask.tolist() == [[bits]]


def test_set_values_become_queries_and_known_ids_per_request() -> None:
    rows = ENCODER.encode([{"location": ["sf", "oslo", "la"]}, {}, {"location": ["sf", "sf"]}])
    location = rows.sets[0]
    assert location.offsets.tolist() == [0, 3, 3, 4]
    expected = [value_hash(v, 7) for v in ("sf", "oslo", "la", "sf")]
    assert location.hashes.tolist() == expected
    assert location.value_offsets.tolist() == [0, 2, 2, 3]
    assert location.value_ids.tolist() == [0, 1, 1]
    assert rows.sets[1].offsets.tolist() == [0, 0, 0, 0]


def test_names_of_other_schemas_are_ignored_and_told() -> None:
    rows = ENCODER.encode([{"zodiac": ["leo"], "country": ["US"], "area": []}, {}])
    assert rows.ignored == (("area", "zodiac"), ())


def test_too_many_distinct_values_are_an_error_never_a_truncation() -> None:
    with pytest.raises(RequestError, match=r"user\.location\.values: 4 distinct values, at most 3"):
        ENCODER.encode([{"location": ["a", "b", "c", "d"]}])
    ENCODER.encode([{"location": ["a", "b", "c", "a", "b"]}])


BAD_VALUES = {
    "text": "US",
    "numbers": [1],
    "nulls": [None],
    "half a character": ["\ud800"],
    "null": None,
    "number": 7,
    "mapping": {"values": ["US"]},
    "iterator": iter(["US"]),
    "reserved": ["*"],
}


@pytest.mark.parametrize("values", BAD_VALUES.values(), ids=BAD_VALUES)
def test_what_is_not_a_list_of_text_is_refused_by_field(values: object) -> None:
    with pytest.raises(RequestError, match=r"user\.country\.values"):
        ENCODER.encode([{"country": values}])  # type: ignore[dict-item]


def test_an_empty_batch_encodes_to_empty_rows() -> None:
    rows = ENCODER.encode([])
    assert rows.bitmask.shape == (0, 1)
    assert rows.sets[0].offsets.tolist() == [0]


def test_hashes_keep_all_64_bits() -> None:
    rows = ENCODER.encode([{"audience": [f"v{i}" for i in range(64)]}])
    assert rows.sets[1].hashes.dtype == np.uint64
    assert (rows.sets[1].hashes >> np.uint64(63)).any()
