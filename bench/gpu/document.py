"""docs/performance.md from the result files: our numbers beside the paper's, and their ratio.

python -m grace.bench.gpu.document docs/performance.md bench/results/h200     between its marks

A table whose result file is not there says which command makes it; a number without a file does
not exist.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.bench.gpu.document_overlap import overlap_tables
from grace.bench.gpu.document_plots import PLOTS
from grace.bench.gpu.document_tables import (
    attention_tables,
    budget_tables,
    gtm_tables,
    ladder_tables,
    others_tables,
    serve_tables,
)
from grace.bench.gpu.results import Row
from grace.configs.marked_text import rewrite

__all__ = ["NAME", "performance_document", "plots_of"]

NAME = "performance"
TIMELINE = "serve_timeline.svg"


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
    _Section("overlap", "Fidelity of half precision", overlap_tables),
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
        if section.table in PLOTS and (plot := file.with_suffix(".svg")).exists():
            parts.append(f"![{section.heading}](../{_shown(plot)})\n")
        if section.table == "serve" and (results / TIMELINE).exists():
            parts.append(f"![the stages at saturation](../{_shown(results / TIMELINE)})\n")
        parts.append(_source(file, result))
    return "\n".join(parts)


def plots_of(results: Path) -> dict[str, str]:
    """The pictures of what has been measured, SVG, by file name."""
    drawn = {}
    for table, plot in PLOTS.items():
        file = results / f"{table}.json"
        if file.exists():
            picture = plot.draw(json.loads(file.read_text(encoding="utf-8"))["rows"])
            if picture is not None:
                drawn[f"{table}.svg"] = picture
    return drawn


def _missing(table: str, file: Path) -> str:
    return (
        f"Not measured yet: `grace bench {table} --out {_shown(file)}` on a machine with the GPU "
        "writes the result file that this section is made of.\n"
    )


def _source(file: Path, result: Mapping[str, Any]) -> str:
    commands = "\n".join(_repeatable(each) for each in result["command"].split(" && "))
    return (
        f"From `{_shown(file)}`, commit `{result['commit']}`, {result['machine']}:\n\n"
        f"```sh\n{commands}\n```\n"
    )


def _repeatable(command: str) -> str:
    """Without what says only where it was measured, and changes nothing of it."""
    return re.sub(r" --(?:commit|cache)(?:=| +)\S+", "", command)


def _shown(file: Path) -> str:
    """Below the repository's root."""
    parts = file.parts
    return "/".join(parts[parts.index("bench") :]) if "bench" in parts else file.name


def main(arguments: Sequence[str]) -> None:
    document, results = Path(arguments[0]), Path(arguments[1])
    for name, picture in plots_of(results).items():
        (results / name).write_text(picture, encoding="utf-8")
    rewrite(document, NAME, performance_document(results))


if __name__ == "__main__":
    main(sys.argv[1:])
