"""The table of docs/building.md: what builds and loads cost, from the result of `build_bench`.

python -m grace.bench.build_table docs/building.md     writes the part between the two marks
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.result_tables import RESULTS, made_by, read_result, table
from grace.configs.marked_text import rewrite

__all__ = ["RESULT", "build_table"]

RESULT = RESULTS / "build.json"


def build_table(result: Mapping[str, Any]) -> str:
    columns = (
        "SIDs",
        "ads",
        "matchers",
        "build, s",
        "s per million ads",
        "peak, GB",
        "load and verify, s: best, most of three",
        "snapshot, GB",
    )
    return made_by(result) + "\n" + table(columns, map(_row, result["rows"]))


def _row(row: Mapping[str, Any]) -> Sequence[str]:
    matchers = f"`{row['matchers']} {row['options']}".rstrip() + "`"
    return (
        f"{row['sids']:,}",
        f"{row['ads']:,}",
        matchers,
        f"{row['build_s']:.1f}",
        f"{row['build_s_per_million_ads']:.2f}",
        f"{row['peak_gb']:.2f}",
        f"{row['load_verify_s']:.2f}, {row['load_verify_most_s']:.2f}",
        f"{row['snapshot_gb']:.2f}",
    )


def main(documents: Sequence[str]) -> None:
    text = build_table(read_result(RESULT))
    for name in documents:
        rewrite(Path(name), "build", text)


if __name__ == "__main__":
    main(sys.argv[1:])
