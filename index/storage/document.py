"""Write the table of arrays in docs/snapshot.md from the code's.

python -m grace.index.storage.document docs/snapshot.md
"""

import sys
from pathlib import Path

from grace.configs.marked_text import rewrite
from grace.index.storage.arrays import TABLE


def arrays_document() -> str:
    """Return the table in Markdown."""
    lines = ["| file | dtype and shape | holds |", "| --- | --- | --- |"]
    for row in TABLE:
        dtype = row.dtype.replace("|", "\\|")
        lines.append(f"| `{row.name}.npy` | `{dtype}` [{', '.join(row.shape)}] | {row.holds} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for document in sys.argv[1:]:
        rewrite(Path(document), "arrays", arrays_document())
