"""Addresses of tables: local paths, or URLs that pyarrow's file systems open.

An address stays a string from the command line to the file system: as a path, `s3://` would become
`s3:/`.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from grace.configs.errors import InputError

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""The exceptions of reading a damaged file; the last one is for a column's name."""


class Format(StrEnum):
    PARQUET = "Parquet"
    JSONL = "JSON lines"
    CSV = "CSV"


FORMAT_OF_ENDING = {
    ".parquet": Format.PARQUET,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
}
ENDINGS = "*.parquet, *.jsonl, *.ndjson, *.json or *.csv (texts also with .gz)"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(address: str) -> bool:
    return _URL.match(address) is not None


def absolute(address: str) -> str:
    """Return the address as other folders and machines write it."""
    return address if is_url(address) else str(Path(address).absolute())


def within(folder: str | Path, address: str) -> str:
    """Join the folder and the address, unless the address is absolute or a URL."""
    if is_url(address):
        return address
    return _joined(str(folder), address) if is_url(str(folder)) else str(Path(folder, address))


def file_system(address: str) -> tuple[fs.FileSystem, str]:
    if not is_url(address):
        return fs.LocalFileSystem(), str(Path(address).absolute())
    try:
        system, path = fs.FileSystem.from_uri(address)
    except UNREADABLE as error:
        raise InputError(
            f"{address}: not a URL that can be opened: {first_line(error)}; give a path, or a URL "
            "such as s3://bucket/ads.parquet, gs://bucket/ads or file:///data/ads"
        ) from None
    return system, path


def ending_format(address: str) -> Format | None:
    """Return the format that the name's ending states."""
    ending = _ending(address)
    form = FORMAT_OF_ENDING.get(ending.removesuffix(".gz").lower())
    return None if form is Format.PARQUET and ending.lower().endswith(".gz") else form


def is_compressed(address: str) -> bool:
    return _ending(address).lower().endswith(".gz")


def _ending(address: str) -> str:
    path = PurePosixPath(address.partition("?")[0] if is_url(address) else address)
    if path.suffix.lower() == ".gz":
        return f"{path.with_suffix('').suffix}{path.suffix}"
    return path.suffix


def first_line(error: Exception) -> str:
    """Return the message without Arrow's sources. Arrow counts a CSV's header as a row."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"Row #(\d+)", lambda row: f"row {int(row[1]) - 1}", line)


def files_at(addresses: Sequence[str]) -> list[str]:
    files: list[str] = []
    for address in addresses:
        system, path = file_system(address)
        try:
            found = system.get_file_info(path)
            if found.type is fs.FileType.Directory:
                files.extend(_in_folder(address, system, path))
            elif found.type is fs.FileType.NotFound:
                raise InputError(f"{address}: no such file or folder")
            else:
                files.append(address)
        except UNREADABLE as error:
            raise InputError(f"{address}: cannot be read: {first_line(error)}") from None
    if not files:
        raise InputError("no table given: name files or folders")
    places = [absolute(file) for file in files]
    repeated = [file for file, at in zip(files, places, strict=True) if places.count(at) > 1]
    if repeated:
        raise InputError(f"{repeated[0]}: given twice; its rows would repeat")
    return files


def _in_folder(address: str, system: fs.FileSystem, path: str) -> list[str]:
    """Return the tables directly in a folder. Refuse other files that seem to belong to it."""
    inside: dict[str, Format] = {}
    below: list[str] = []
    for found in system.get_file_info(fs.FileSelector(path, recursive=True)):
        form = ending_format(found.path)
        if form is None or found.type is fs.FileType.Directory:
            continue
        name = found.path[len(path) :].strip("/")
        if form is not Format.PARQUET and name.rpartition("/")[2].startswith(("_", ".")):
            continue  # notes by the program that wrote the table
        shown = _joined(address, name)
        if "/" in name or _ending(name) != _ending(name).lower():
            below.append(shown)
        else:
            inside[shown] = form
    if below:
        raise InputError(
            f"{min(below)}: a folder's tables must be directly in it and end in {ENDINGS}; "
            "name this one as well, or move it away"
        )
    if not inside:
        raise InputError(f"{address}: no table in this folder: none ends in {ENDINGS}")
    if len(set(inside.values())) > 1:
        one, two = sorted(set(inside.values()))[:2]
        raise InputError(
            f"{address}: a folder with both {one} and {two}; name the files of the table"
        )
    return sorted(inside)


def _joined(address: str, name: str) -> str:
    folder, mark, query = address.partition("?") if is_url(address) else (address, "", "")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"
