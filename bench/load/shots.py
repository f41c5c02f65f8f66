"""The requests of a load: JSON lines in the API's JSON form, as wire bytes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.client import request_of_json
from grace.configs.errors import InputError, RequestError


@dataclass(frozen=True, slots=True)
class Shot:
    """One call of a load, which makes it again and again."""

    body: bytes
    timeout_seconds: float | None = None


def read_requests(path: Path) -> tuple[dict[str, Any], ...]:
    """Read a file of JSON lines, such as `grace synth` writes."""
    try:
        lines = path.read_bytes().decode().split("\n")
        requests = tuple(json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not JSON lines: {error}; `grace synth` writes some") from None
    if not requests:
        raise InputError(f"{path}: holds no request; `grace synth` writes some")
    return requests


def read_shots(path: Path, timeout_seconds: float | None) -> tuple[Shot, ...]:
    shots = []
    for number, request in enumerate(read_requests(path), 1):
        try:
            body = request_of_json(request).SerializeToString()
        except RequestError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        shots.append(Shot(body, timeout_seconds))
    return tuple(shots)
