"""Import Semantic IDs that other projects publish, as an ads table in Parquet.

One reader per format yields the file's items and tokens (`json_items`, `npy`). `items` checks
them, `item_numbers` gives each an ad id, and `ads_table` writes the table. A list names every
refused item.
"""

from grace.configs.options import ImportSpec
from grace.index.importers.sids import ImportReport, import_sids

__all__ = ["ImportReport", "ImportSpec", "import_sids"]
