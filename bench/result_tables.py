"""From a result file to a Markdown table: what the documents' generated parts share."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.configs.errors import InputError

__all__ = ["RESULTS", "made_by", "read_result", "table"]

RESULTS = Path(__file__).parent / "results" / "cpu-2core"
"""The results that the documents tell."""


def read_result(path: Path) -> Mapping[str, Any]:
    """What `write_result` wrote."""
    if not path.is_file():
        raise InputError(f"{path}: not measured yet: run `make bench`")
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def made_by(result: Mapping[str, Any]) -> str:
    """Where the rows are from, a line."""
    return f"Commit {result['commit']}, {result['machine']}: `{result['command']}`.\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
