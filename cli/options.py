"""Options that several commands share, and how lists of ids are read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from grace.configs.errors import InputError
from grace.configs.options import Option

if TYPE_CHECKING:
    from grace.client import Tls
    from grace.index.tables.ids import DataIds

AsJson: TypeAlias = Annotated[bool, Option("Print JSON, for scripts.", name="--json")]
Force: TypeAlias = Annotated[bool, "Replace existing files."]
Data: TypeAlias = Annotated[
    Path | None, Option("Data folder with the id maps of the ids that you give.", "FOLDER")
]
Dtype: TypeAlias = Annotated[str, "Type of the weights: float32, bfloat16 or float16."]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of every command that calls a server."""

    address: Annotated[str, "HOST:PORT of the server."] = "127.0.0.1:50051"
    tls_ca: Annotated[
        Path | None, "PEM file of the CA that signed the server's certificate; turns TLS on."
    ] = None
    tls_certificate: Annotated[
        Path | None, "PEM file of your certificate, for a server that requires one."
    ] = None
    tls_key: Annotated[Path | None, "PEM file of the key of --tls-certificate."] = None
    timeout: Annotated[float, Option("Seconds to wait for the reply.", least=0.001)] = 10.0
    as_json: AsJson = False

    def tls(self) -> "Tls | None":
        from grace.client import tls_of

        require_seconds("--timeout", self.timeout)
        return tls_of(self.tls_ca, self.tls_certificate, self.tls_key)


MOST_SECONDS = 86_400
"""A day. gRPC takes a wait of many years for one that has already ended."""


def require_seconds(option: str, seconds: float) -> None:
    """Refuse a wait that is longer than a day."""
    if not seconds <= MOST_SECONDS:
        raise InputError(
            f"{option}: {seconds:g} seconds, at most {MOST_SECONDS}, which is a day: give fewer"
        )


def require_known(name: str, known: tuple[str, ...], option: str) -> None:
    if name not in known:
        raise typer.BadParameter(f"{name!r}; choose from {', '.join(known)}", param_hint=option)


def ids_by_name(assignments: Sequence[str], option: str = "") -> dict[str, list[str]]:
    """Collect the ids of each name from texts such as campaign=9,12.

    A comma before a blank is part of an id: `Acme, Inc.` is one. `option` begins an error's text.
    """
    found: dict[str, list[str]] = {}
    for assignment in assignments:
        name, listed = split(assignment, option, "NAME=ID,ID, such as campaign=9,12")
        found.setdefault(name, []).extend(re.split(r",(?! )", listed))
    return found


def data_ids(data: Path | None) -> "DataIds | None":
    """Return the ids of --data."""
    from grace.index.tables.ids import DataIds

    return None if data is None else DataIds(data)


def number_of(level: str, text: str, ids: "DataIds | None") -> int:
    """Return the number of an ad or of an entity."""
    number = integer(text, 0, 2**63 - 1) if ids is None else ids.number(level, text)
    if number is None or (ids is None and text != str(number)):
        raise InputError(
            f"{level} {text!r}: ids are 0 to 2^63 - 1; give --data FOLDER if its id map numbers "
            "this one"
        )
    return number


def split(assignment: str, option: str, expected: str) -> tuple[str, str]:
    """Return both sides of NAME=VALUE."""
    name, equals, value = assignment.partition("=")
    if not name or not equals:
        raise InputError(f"{option}{assignment}: write {expected}")
    return name, value


def integer(text: str, least: int, most: int) -> int | None:
    """Return the number, or None for text that is none of these."""
    if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII):
        return None
    number = int(text)
    return number if least <= number <= most else None
