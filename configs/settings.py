"""Write the table of all settings in docs/operations.md from the configuration sections.

python -m grace.configs.settings docs/operations.md
"""

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from grace.configs.marked_text import rewrite
from grace.configs.options import declaration
from grace.configs.serving import ServingConfig

_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


def settings_document(section: type) -> str:
    """Return Markdown: the top-level settings, then a table for each section."""
    return "\n".join(_tables(section, "")).strip() + "\n"


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
            row = (f"`{field.name}`", _type(hint), _default(field), declared.words)
            rows.append(f"| {' | '.join(row)} |")
    if path:
        yield f"### `{path}`\n"
        yield f"{(section.__doc__ or '').splitlines()[0]}\n"
    yield "| setting | type | default | meaning |\n| --- | --- | --- | --- |"
    yield from rows
    yield ""
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
    for name in sys.argv[1:]:
        rewrite(Path(name), "settings", settings_document(ServingConfig))
