"""A data folder of the served catalogue in which ads and advertisers have texts as ids.

Its id maps give each text the number that the catalogue's snapshot has.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from support.serving_files import ServingFiles


def sku(ad_id: int) -> str:
    return f"sku-{ad_id}"


def advertiser(number: int) -> str:
    return f"Acme, Inc. = {number}"


def write_text_shop(folder: Path, files: ServingFiles, ads: int | None = None) -> Path:
    """Write the folder. Its id map has the first `ads` ads; None: all."""
    catalogue = files.catalogue
    folder.mkdir(exist_ok=True)
    (folder / "targeting.yaml").write_bytes((catalogue / "targeting.yaml").read_bytes())
    (folder / "tables.yaml").write_text(
        "ads: {files: [ads.parquet], columns: {ad_id: sku}}\nid_map: ids.parquet\n"
        "entity_ids: {advertiser: advertisers.parquet}\nsids: sids.parquet\n"
    )
    table = pq.read_table(catalogue / "ads.parquet")
    numbers = table["ad_id"].to_pylist()
    skus = pa.array(map(sku, numbers))
    pq.write_table(
        table.drop_columns(["ad_id", "sid"]).append_column("sku", skus), folder / "ads.parquet"
    )
    pq.write_table(pa.table({"item_id": skus, "sid": table["sid"]}), folder / "sids.parquet")
    write_map(folder / "ids.parquet", {sku(number): number for number in numbers[:ads]})
    sellers = table["advertiser"].drop_null().unique().to_pylist()
    names = {advertiser(number): number for number in sellers}
    write_map(folder / "advertisers.parquet", names)
    return folder


def write_map(path: Path, numbers: dict[str, int]) -> None:
    unfinished = path.with_suffix(".new")
    columns = {
        "item_id": pa.array(numbers, pa.string()),
        "ad_id": pa.array(numbers.values(), pa.int64()),
    }
    pq.write_table(pa.table(columns), unfinished)
    unfinished.replace(path)
