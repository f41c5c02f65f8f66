"""A data folder says where tables are and which rules they have; what is wrong is named by path."""

from pathlib import Path

import pytest

from grace.configs.errors import ConfigError, InputError
from grace.index.tables.data_folder import TableSource, read_data_folder
from grace.index.targeting.schema import load_schema

TABLES = """
ads:
  files: [../raw/ads.csv, s3://bucket/ads]
  list_separator: "|"
  columns: {ad_id: sku, country: Country Code}
sids: codebook
id_map: ids.parquet
log: {files: [/data/clicks.csv], columns: {user_id: uid}}
"""


def test_paths_are_relative_to_the_folder_and_urls_stay_urls(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(TABLES)
    data = read_data_folder(tmp_path)
    assert data.targeting == tmp_path / "targeting.yaml"
    columns = {"ad_id": "sku", "country": "Country Code"}
    files = (f"{tmp_path}/../raw/ads.csv", "s3://bucket/ads")
    assert data.ads == TableSource(files, columns, "|")
    assert (data.ads.theirs("ad_id"), data.ads.theirs("title")) == ("sku", "title")
    assert (data.sids, data.id_map) == (f"{tmp_path}/codebook", tmp_path / "ids.parquet")
    assert data.log == TableSource(("/data/clicks.csv",), {"user_id": "uid"})


def test_a_folder_without_tables_yaml_has_the_canonical_files(tmp_path: Path) -> None:
    for text in ("no such folder", "neither tables.yaml nor ads.parquet"):
        with pytest.raises(InputError, match=f"{text}.*grace init --ads TABLE --out"):
            read_data_folder(tmp_path / "shop")
        (tmp_path / "shop").mkdir(exist_ok=True)
    (tmp_path / "ads.parquet").write_text("")
    data = read_data_folder(tmp_path)
    assert (data.ads, data.log) == (TableSource((f"{tmp_path}/ads.parquet",)), None)
    (tmp_path / "interactions.parquet").write_text("")
    assert read_data_folder(tmp_path).log == TableSource((f"{tmp_path}/interactions.parquet",))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sids: codebook", "missing key 'ads'"),
        ("ads: {file: [a.csv]}", "ads: unknown key 'file'; known: columns, files, ignore"),
        ("ads: {files: []}", r"ads\.files: name at least one"),
        ("ads: {files: [a.csv], columns: {ad_id: ''}}", r"ads\.columns: ad_id has no name"),
        ("ads: {files: [a.csv], list_separator: ''}", r"ads\.list_separator: empty"),
        ("ads: {files: [a.csv]}\nid_map: s3://b/ids.parquet", "id_map: .* is a URL"),
        ("ads: {files: [a.csv]}\nentity_ids: {ad_id: b.parquet}", "ad_id: not an entity; name"),
    ],
)
def test_a_fault_is_named_by_its_path(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "tables.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"tables.yaml:.*{fault}"):
        read_data_folder(tmp_path)


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
    path = tmp_path / "targeting.yaml"
    path.write_text(GOOD.replace(good, bad))
    with pytest.raises(ConfigError) as caught:
        load_schema(path)
    assert message in str(caught.value)
    assert "targeting.yaml" in str(caught.value)
