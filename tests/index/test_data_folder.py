"""A data folder says where the tables are; what it says wrongly is named by path."""

from pathlib import Path

import pytest

from grace.configs.errors import ConfigError, InputError
from grace.index.tables.data_folder import TableSource, read_data_folder

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
