"""Import Semantic IDs that other projects publish, as an ads table in Parquet.

A reader per format yields items and tokens as the file has them (`json_items`, `npy`). `items`
checks them all, `item_numbers` gives each an ad id, and `ads_table` writes the table. Every item
that is refused is listed.
"""

from grace.index.importers.sids import ImportReport, ImportSpec, import_sids

__all__ = ["ImportReport", "ImportSpec", "import_sids"]
