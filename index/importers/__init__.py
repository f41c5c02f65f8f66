"""Import Semantic IDs that other projects publish, as an ads table in Parquet.

A reader per format yields items and tokens as the file has them (`index_json`, `json_lines`,
`npy`). `accepted_items` checks them all, `item_numbers` gives each an ad id, and `ads_table` writes
the table. Every item that is refused is listed.
"""

from grace.index.importers.sids import ImportReport, import_sids
from grace.index.importers.spec import ImportSpec

__all__ = ["ImportReport", "ImportSpec", "import_sids"]
