"""The targeting schema: read strictly, laid out as documented, stored and read back the same."""

from pathlib import Path

import pytest

from grace.configs.errors import ConfigError
from grace.index.targeting.schema import TargetingSchema, load_schema

GOOD = """
attributes:
  country: {values: [US, NO, GB]}
  age: {values: [18-24, 25-34]}
  gender: {values: [female, male, unknown], missing: unknown, missing_passes_exclude: true}
sets:
  location: {bloom_bits: 256, bloom_hashes: 4, max_request_values: 64}
entities: [campaign, advertiser]
hash_seed: 7
"""


def load(tmp_path: Path, text: str) -> TargetingSchema:
    path = tmp_path / "targeting.yaml"
    path.write_text(text)
    return load_schema(path)


COUNTRIES, ENTITIES = "[US, NO, GB]", "[campaign, advertiser]"
BAD = [
    ("missing: unknown", "absent: unknown", "unknown key 'absent'"),
    (COUNTRIES, "[US, NO, US]", "'US' is listed twice"),
    (COUNTRIES, "[US, '']", "empty value"),
    (COUNTRIES, "[]", "at least one value"),
    (COUNTRIES, str([f"v{i}" for i in range(4097)]), "4097 values, at most 4096; declare it as a"),
    ("missing: unknown", "missing: other", "not one of its"),
    ("256", "32", "bloom_bits: must be 64 to 65536, got 32"),
    ("256", "200", "bloom_bits: must be a power of two, got 200"),
    ("bloom_hashes: 4", "bloom_hashes: 5", "1 to 4, got 5"),
    ("max_request_values: 64", "max_request_values: 0", "must be 1 to 65536, got 0"),
    ("max_request_values: 64", "max_request_values: 65537", "must be 1 to 65536, got 65537"),
    ("hash_seed: 7", "hash_seed: -1", "0 to 2^64 - 1"),
    ("country:", "Country:", "'Country': use a lower-case"),
    ("country:", "ad_id:", "'ad_id': taken by a column"),
    ("country:", "a_exclude:", "'a_exclude': taken by a column"),
    ("location:", "country:", "'country': declared twice"),
    (ENTITIES, str([f"e{i}" for i in range(9)]), "entities: 9 names, at most 8; leave some out"),
    (ENTITIES, "[ad]", "entities: 'ad' stands for single"),
    (ENTITIES, "[Advertiser]", "'Advertiser': use a lower"),
    (ENTITIES, "[ad_id]", "'ad_id': taken by a column"),
    (ENTITIES, "[location]", "'location': declared twice"),
    (ENTITIES, "[a_min]\nranges: {a: {}}", "names 'a_min' and 'a': each has column 'a_min'"),
    (ENTITIES, "[]\nflights: {a: {}}\nproperties: {a_end: {}}", "'a_end': each has column 'a_end'"),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD)
def test_a_bad_schema_is_refused_with_the_key_and_the_remedy(
    tmp_path: Path, good: str, bad: str, message: str
) -> None:
    assert good in GOOD
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(good, bad))
    assert message in str(caught.value)
    assert "targeting.yaml" in str(caught.value)
