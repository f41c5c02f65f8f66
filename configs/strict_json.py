"""Strict JSON, for files that may hold anything: one object, integers, no key twice, real text."""

import json
from typing import Any, NoReturn


def parse_object(content: bytes) -> dict[str, Any]:
    """Raises ValueError, and nothing else, for anything but that."""
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=without_repeats,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
        )
        # A lone surrogate, \\ud800, is JSON but not text.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("not JSON that we read: nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, or an integer of thousands of digits
        raise ValueError(f"not JSON that we read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Return a value as an error message shows it: cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"key {shown(key)} occurs twice")
        fields[key] = value
    return fields


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]}: only integers are expected")
