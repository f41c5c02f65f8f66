"""The requests of a load, as wire bytes.

They come from JSON lines in the API's JSON form. Requests of thousands of values, whose JSON takes
milliseconds each to read, come from a `.wire` file: for each request its length, 4 bytes
little-endian, and its bytes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.client import request_of_json
from grace.configs.errors import InputError, RequestError

WIRE = ".wire"
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shot:
    """One call of a load, which makes it again and again."""

    body: bytes
    timeout_seconds: float | None = None
    cancel_after_seconds: float | None = None


def read_requests(path: Path) -> tuple[dict[str, Any], ...]:
    """Read a file of JSON lines, such as `grace synth` writes."""
    requests = []
    for number, line in enumerate(_content(path).decode().split("\n"), 1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(request, dict):
            raise InputError(f"{path}:{number}: must be a JSON object, one a line")
        requests.append(request)
    if not requests:
        raise InputError(f"{path}: holds no request; `grace synth` writes some")
    return tuple(requests)


def read_shots(path: Path, timeout_seconds: float | None) -> tuple[Shot, ...]:
    if path.suffix == WIRE:
        return tuple(Shot(body, timeout_seconds) for body in _read_wire(path))
    shots = []
    for number, request in enumerate(read_requests(path), 1):
        try:
            body = request_of_json(request).SerializeToString()
        except RequestError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        shots.append(Shot(body, timeout_seconds))
    return tuple(shots)


def write_wire(bodies: Iterable[bytes], path: Path) -> None:
    path.write_bytes(
        b"".join(len(body).to_bytes(_LENGTH_BYTES, "little") + body for body in bodies)
    )


def _read_wire(path: Path) -> list[bytes]:
    content, bodies, at = _content(path), list[bytes](), 0
    while at < len(content):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(content[at:begin], "little")
        if at > len(content) or begin > len(content):
            raise InputError(f"{path}: ends within request {len(bodies) + 1}; write it again")
        bodies.append(content[begin:at])
    if not bodies:
        raise InputError(f"{path}: holds no request")
    return bodies


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; `grace synth` writes one") from None


def write_ghz_data(requests: Path, out: Path) -> None:
    """Write the same requests as one JSON array, which ghz's --data-file reads."""
    array = [json.dumps(request) for request in read_requests(requests)]
    text = "[\n" + ",\n".join(array) + "\n]\n"
    if "{{" in text:
        raise InputError(f"{requests}: holds '{{{{', which ghz would take for a template")
    out.write_text(text, encoding="utf-8")
