"""docs/performance.md from the result files: our numbers beside the paper's, and their ratio.

python -m bench.gpu.document docs/performance.md bench/results/h200     between its marks

A table whose result file is not there says which command makes it; a number without a file does
not exist.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.bars import draw_bars
from bench.gpu.document_tables import (
    attention_tables,
    budget_tables,
    gtm_tables,
    ladder_bars,
    ladder_tables,
    others_tables,
    serve_tables,
)
from bench.gpu.results import Row
from configs.marked_text import rewrite

__all__ = ["NAME", "PLOT", "performance_document", "plot_of"]

NAME = "performance"
PLOT = "ladder.svg"


@dataclass(frozen=True, slots=True)
class _Section:
    table: str
    heading: str
    tables: Callable[[Sequence[Row]], str]


_SECTIONS = (
    _Section("ladder", "Decoder and whole path", ladder_tables),
    _Section("attention", "Attention kernels", attention_tables),
    _Section("gtm", "Admission and selection", gtm_tables),
    _Section("serve", "The service", serve_tables),
    _Section("budget", "Budget of the decode loop", budget_tables),
    _Section("others", "Side by side", others_tables),
)


def performance_document(results: Path) -> str:
    """Markdown of all sections."""
    parts = []
    for section in _SECTIONS:
        parts.append(f"## {section.heading}\n")
        file = results / f"{section.table}.json"
        if not file.exists():
            parts.append(_missing(section.table, file))
            continue
        result: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        parts.append(section.tables(result["rows"]))
        if section.table == "ladder" and (results / PLOT).exists():
            parts.append(f"![the ladder](../{_shown(results / PLOT)})\n")
        parts.append(_source(file, result))
    return "\n".join(parts)


def plot_of(results: Path) -> str | None:
    """The ladder's picture, SVG; None before it is measured."""
    file = results / "ladder.json"
    if not file.exists():
        return None
    bars = ladder_bars(json.loads(file.read_text(encoding="utf-8"))["rows"])
    return draw_bars("Decoder P50, batch 16, logarithmic", ("paper (GH200)", "here"), bars, "ms")


def _missing(table: str, file: Path) -> str:
    return (
        f"Not measured yet: `grace bench {table} --out {_shown(file)}` on a machine with the GPU "
        "writes the result file that this section is made of.\n"
    )


def _source(file: Path, result: Mapping[str, Any]) -> str:
    commands = "\n".join(result["command"].split(" && "))
    return (
        f"From `{_shown(file)}`, commit `{result['commit']}`, {result['machine']}:\n\n"
        f"```sh\n{commands}\n```\n"
    )


def _shown(file: Path) -> str:
    """Below the repository's root."""
    parts = file.parts
    return "/".join(parts[parts.index("bench") :]) if "bench" in parts else file.name


def main(arguments: Sequence[str]) -> None:
    document, results = Path(arguments[0]), Path(arguments[1])
    plot = plot_of(results)
    if plot is not None:
        (results / PLOT).write_text(plot, encoding="utf-8")
    rewrite(document, NAME, performance_document(results))


if __name__ == "__main__":
    main(sys.argv[1:])
