"""Options that several commands share, and how lists of numbers and of ids are read."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, overload

import typer

from grace.configs.errors import InputError

if TYPE_CHECKING:
    from grace.client import Access
    from grace.index.tables.ids import DataIds
    from grace.model.train.catalogue import Stated

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Data: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Data folder with the id maps of the ids that you give."),
]
Dtype: TypeAlias = Annotated[
    str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")
]
Without: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Leave out this attribute, set or entity, which no ad has; repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of a command that reads the log of a data folder and computes with torch."""

    data: Annotated[
        Path,
        typer.Option(help="Data folder: tables.yaml, or ads.parquet and interactions.parquet."),
    ]
    device: Annotated[
        str | None, typer.Option(help="cpu, or cuda:0. Default: the GPU, if there is one.")
    ] = None
    max_unknown: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Largest share of events of unknown ads; above it, the command ends."
        ),
    ] = 0.1
    sid_space: Annotated[
        str | None, typer.Option(help="Name of the SID space, if the ads table does not say it.")
    ] = None
    vocab_sizes: Annotated[
        str | None, typer.Option(help="Tokens per position, if the ads table does not say them.")
    ] = None
    without: Without = None

    def stated(self) -> "Stated":
        """Return the facts that the ads table does not state."""
        from grace.model.train.catalogue import Stated

        sizes = numbers(self.vocab_sizes, "--vocab-sizes", "512,512,512,512")
        return Stated(self.sid_space, sizes, tuple(self.without or ()))


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of every command that calls a server."""

    address: Annotated[str, typer.Option(help="HOST:PORT of the server.")] = "127.0.0.1:50051"
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of the CA that signed the server's certificate; turns TLS on."),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        typer.Option(help="PEM file of your certificate, for a server that requires one."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM file of the key of --tls-certificate.")
    ] = None
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the reply.")] = 10.0
    as_json: AsJson = False

    def access(self, token_file: Path | None = None) -> "Access":
        from grace.client import access_of

        require_seconds("--timeout", self.timeout)
        return access_of(self.tls_ca, self.tls_certificate, self.tls_key, token_file)


MOST_SECONDS = 86_400
"""A day. gRPC takes a wait of many years for one that has already ended."""


def spread(
    *options: type, **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that takes dataclasses first: their fields become its options.

    The command's required options come first. `defaults` replace those of the fields.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        fields = [signature(each).parameters for each in options]
        shared = {name: option for each in fields for name, option in each.items()}
        for name, default in defaults.items():
            shared[name] = shared[name].replace(default=default)
        own = list(signature(command).parameters.values())[len(options) :]
        required = [option for option in own if option.default is Parameter.empty]
        shown = [*required, *shared.values(), *own[len(required) :]]

        @wraps(command)
        def run(**given: Any) -> None:
            values = [{name: given.pop(name) for name in each} for each in fields]
            command(*(each(**its) for each, its in zip(options, values, strict=True)), **given)

        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in shown}
        return run

    return decorate


def require_seconds(option: str, seconds: float) -> None:
    """Refuse a wait that is longer than a day."""
    if not seconds <= MOST_SECONDS:
        raise InputError(
            f"{option}: {seconds:g} seconds, at most {MOST_SECONDS}, which is a day: give fewer"
        )


@overload
def numbers(text: str, option: str, example: str) -> tuple[int, ...]: ...
@overload
def numbers(text: str | None, option: str, example: str) -> tuple[int, ...] | None: ...
def numbers(text: str | None, option: str, example: str) -> tuple[int, ...] | None:
    """Return the comma-separated numbers of an option, or None if it is not given."""
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"expected numbers such as {example}, got {text!r}", param_hint=option
        ) from None


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
