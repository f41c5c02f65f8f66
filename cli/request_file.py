"""A request from a file of JSON, or of JSON lines."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.configs.errors import InputError, RequestError

if TYPE_CHECKING:
    from grace.proto.retrieval_pb2 import RetrieveRequest


def request_message(source: str | None, line: int) -> "RetrieveRequest":
    """Read a request from a file, or from standard input if the source is -; None: an empty one."""
    from grace.client import request_of_json

    if source is None:
        return request_of_json({})
    name = "standard input" if source == "-" else source
    request, place = _json_request(_text(source, name), name, line)
    try:
        return request_of_json(request)
    except RequestError as error:
        raise InputError(f"{place}: {error}") from None


def _json_request(text: str, name: str, line: int) -> tuple[Any, str]:
    """Return the request, and where it is, for errors. The text is one request or JSON lines."""
    lines = text.split("\n")
    filled = [number for number, part in enumerate(lines, start=1) if part.strip()]
    are_json_lines = len(filled) > 1 and _is_json(lines[filled[0] - 1])
    last = filled[-1] if are_json_lines else 1
    if line > last:
        raise InputError(f"{name}: --line {line}: the last request is on line {last}")
    if not are_json_lines:
        return _parsed(text, name), name
    if line not in filled:
        raise InputError(f"{name}: --line {line}: that line is empty; name another")
    return _parsed(lines[line - 1], name, line), f"{name}, line {line}"


def _is_json(text: str) -> bool:
    try:
        _parsed(text, "")
    except InputError:
        return False
    return True


def _parsed(text: str, name: str, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        place = f"line {fault.lineno - 1 + first_line}, column {fault.colno}"
        raise InputError(f"{name}: no JSON request: {fault.msg} at {place}") from None
    except (ValueError, RecursionError):
        fault_text = "a number is too long, or lists are nested too deep"
        raise InputError(f"{name}: no JSON request: {fault_text}") from None


def _text(source: str, name: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}; give a request as JSON") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: not UTF-8 text; give a request as JSON") from None
