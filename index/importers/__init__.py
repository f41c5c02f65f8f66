"""From the files in which other projects publish Semantic IDs to an ads table in Parquet.

A reader per format yields items and tokens as they stand in the file (`index_json`, `json_lines`,
`npy`); `collect` judges them, `write` makes the table. What is refused is listed, item by item.
"""

from grace.index.importers.sids import ImportReport, import_sids
from grace.index.importers.spec import ImportSpec

__all__ = ["ImportReport", "ImportSpec", "import_sids"]
