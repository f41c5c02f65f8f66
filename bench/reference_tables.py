"""Write the tables of documents that code declares: settings, metrics, files of a snapshot.

python -m grace.bench.reference_tables docs
"""

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from prometheus_client.core import Metric

from grace.bench.markdown import markdown_table, rewrite
from grace.configs.options import declaration
from grace.configs.serving import ServingConfig
from grace.index.storage.arrays import TABLE
from grace.server.observe.metrics import Metrics
from grace.server.server_state import ServerState

_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


def arrays_table() -> str:
    rows = (
        (f"`{row.name}.npy`", f"`{row.dtype}` [{', '.join(row.shape)}]", row.holds) for row in TABLE
    )
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in rows)
    return markdown_table(("file", "dtype and shape", "holds"), escaped)


def metrics_table() -> str:
    """Return a row for each metric, those of a GPU included."""
    metrics = Metrics(ServerState(), torch.device("cuda"))
    rows = sorted(map(_metric, metrics.registry.collect()))
    return markdown_table(("metric", "kind", "meaning"), rows)


def _metric(metric: Metric) -> tuple[str, str, str]:
    total = "_total" if metric.type == "counter" else ""
    labels = [label for label in metric.samples[0].labels if label != "le"]
    braces = f"{{{','.join(labels)}}}" if labels else ""
    return f"`{metric.name}{total}{braces}`", metric.type, metric.documentation


def settings_tables() -> str:
    """Return the top-level settings, then a table for each section."""
    return "\n".join(_tables(ServingConfig, "")).strip() + "\n"


def _tables(section: type, path: str) -> Iterator[str]:
    hints = get_type_hints(section, include_extras=True)
    rows, below = [], []
    for field in fields(section):
        hint, declared = declaration(hints[field.name])
        nested = _section_below(hint)
        if nested is not None:
            place = ".<name>" if get_origin(hint) in (dict, Mapping) else ""
            below.append((nested, f"{path}.{field.name}{place}".lstrip(".")))
        if nested is None or declared.words:
            rows.append((f"`{field.name}`", _type(hint), _default(field), declared.words))
    if path:
        yield f"## `{path}`\n"
        yield f"{(section.__doc__ or '').splitlines()[0]}\n"
    yield markdown_table(("setting", "type", "default", "meaning"), rows)
    for nested, name in below:
        yield from _tables(nested, name)


def _section_below(hint: Any) -> type | None:
    """Return the section that a field holds, directly, or none, or as a mapping's values."""
    if is_dataclass(hint):
        return hint if isinstance(hint, type) else None
    if get_origin(hint) in (dict, Mapping):
        return _section_below(get_args(hint)[1])
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_section_below, get_args(hint))), None)
    return None


def _type(hint: Any) -> str:
    origin, members = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f"`{member}`" for member in members)
    if origin in (Union, types.UnionType):
        (given,) = (member for member in members if member is not type(None))
        return f"{_type(given)}, or none"
    if origin is tuple:
        plural = "" if get_origin(members[0]) is Literal else "s"
        return f"list of {_type(members[0])}{plural}"
    return "section" if _section_below(hint) else _NAMES[hint]


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        value = field.default
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return "none" if value in (None, ()) else f"`{text}`"
    required: str = field.metadata.get("default", "required")
    return required if field.default_factory is MISSING else ""


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    rewrite(docs / "settings.md", "settings", settings_tables())
    rewrite(docs / "metrics.md", "metrics", metrics_table())
    rewrite(docs / "snapshot.md", "arrays", arrays_table())
