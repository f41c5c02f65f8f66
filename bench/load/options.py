"""Types of this package's command-line options; a wrong value is refused before any load."""

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from grace.client import Tls, tls_of
from grace.configs.errors import GraceError


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_command(main: Callable[[Sequence[str]], int | None]) -> None:
    """Run the command and exit; an error prints one line and gives the exit code of its class.

    SIGTERM ends the command as Ctrl-C does: it stops its server and removes its folders.
    """
    # gRPC reports connections that servers close; the commands report what calls see of that.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(sys.argv[1:]))
    except GraceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `tls_from` reads."""
    for option, means in (
        ("--tls-ca", "PEM file of the CA that signed the server's certificate; turns TLS on"),
        ("--tls-certificate", "PEM file of a client certificate, for a server that requires one"),
        ("--tls-key", "the key of --tls-certificate"),
    ):
        parser.add_argument(option, type=Path, help=means)


def tls_from(options: argparse.Namespace) -> Tls | None:
    return tls_of(options.tls_ca, options.tls_certificate, options.tls_key)


def data_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file of requests")
    return path
