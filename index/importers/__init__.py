"""Import Semantic IDs that other projects publish, as a table of `item_id` and `sid`.

One reader per format yields the file's items and tokens (`json_items`, `npy`), and `items` checks
them. A list names every refused item. `grace build --sids` joins the table to the ads.
"""

from grace.configs.options import ImportSpec
from grace.index.importers.sids import ImportReport, import_sids

__all__ = ["ImportReport", "ImportSpec", "import_sids"]
