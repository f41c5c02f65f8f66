"""Options that several commands share, and how a list of numbers is read."""

from pathlib import Path
from typing import Annotated, TypeAlias, overload

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
TlsCa: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="PEM file of the CA that signed the server's certificate; turns TLS on."),
]
TlsCertificate: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file of your certificate, for a server that requires one.")
]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file of the key of --tls-certificate.")
]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="File with a token that the server accepts.")
]
RequestFile: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A request as JSON, or JSON lines; - reads standard input."),
]
RequestLine: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of the JSON line in FILE.")
]
Dtype: TypeAlias = Annotated[
    str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")
]


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
