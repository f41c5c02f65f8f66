"""Types of this package's command-line options; a wrong value is refused before any load."""

import argparse
import math
from pathlib import Path

MOST_PROCESSES = 64
"""Each is an interpreter with gRPC, some 60 MB, and makes about a thousand calls a second."""


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


def number_of_processes(text: str) -> int:
    value = positive_integer(text)
    if value > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_PROCESSES}, got {text!r}")
    return value


def data_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file of requests")
    return path


def out_file(text: str) -> Path:
    """A file that the command can write once the load is over."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a folder; name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: its folder does not exist; make it first")
    return path
