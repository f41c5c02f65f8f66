"""One array file: NumPy's .npy, version 1.0, C order, little-endian; its digest covers all bytes.

NumPy writes the header. A reader compares it with the one line that the manifest's dtype and shape
allow, so the text of an untrusted file is never evaluated.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from grace.configs.arrays import AnyArray
from grace.configs.errors import SnapshotError
from grace.index.allocation import Allocate
from grace.index.storage.folder import open_file, write_new
from grace.index.storage.manifest import FileEntry

_MAGIC = b"\x93NUMPY\x01\x00"
_PREFIX = len(_MAGIC) + 2  # and the header's length, uint16
_MAX_HEADER = 4096
_READ_CHUNK = 1 << 20  # digested while it is still in the core's cache
_WRITE_CHUNK = 16 << 20


def map_array(path: Path, dtype: str, shape: tuple[int, ...], offset: int = 0) -> AnyArray:
    """Map an array that begins at byte `offset`; an empty array has no map and is in memory."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)


def read_rows(array: AnyArray, begin: int, end: int) -> AnyArray:
    """Return rows begin .. end - 1. Those of a map are read from its file, not into its pages.

    Raises SnapshotError if the file was removed or cut since it was mapped.
    """
    base: Any = array.base
    if not (isinstance(array, np.memmap) and isinstance(base, mmap.mmap)):  # part of a map is none
        return array[begin:end]
    shape = (end - begin, *array.shape[1:])
    place = array.offset + begin * array.strides[0]
    file = Path(str(array.filename))
    try:
        return np.fromfile(file, array.dtype, prod(shape), offset=place).reshape(shape)
    except (OSError, ValueError) as error:
        raise SnapshotError(file.name, f"changed while it was read: {error}", file.parent) from None


def write_array(name: str, array: AnyArray, folder: int, *, synced: bool = True) -> FileEntry:
    """Write a new file; `synced`: down to the disk."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    header = head.getvalue()
    data = array.reshape(-1).view(np.uint8).data
    digest = xxhash.xxh3_128(header)

    def parts() -> Iterator[bytes | memoryview]:
        yield header
        for begin in range(0, len(data), _WRITE_CHUNK):
            chunk = data[begin : begin + _WRITE_CHUNK]
            digest.update(chunk)
            yield chunk

    write_new(name, folder, parts(), synced=synced)
    size = len(header) + len(data)
    return FileEntry(name, array.dtype.str, array.shape, size, digest.hexdigest())


@contextmanager
def _opened(entry: FileEntry, folder: int) -> Iterator[int]:
    """A descriptor of a file that has as many bytes as the manifest says."""
    with open_file(entry.file, folder) as (file, size):
        if size != entry.bytes:
            fault = f"has {size} bytes, but the manifest says {entry.bytes}"
            raise SnapshotError(entry.file, fault)
        yield file


def check_size(entry: FileEntry, folder: int) -> None:
    with _opened(entry, folder):
        pass


def read_array(entry: FileEntry, folder: int, allocate: Allocate) -> AnyArray:
    """Return the array. Its bytes are checked against the manifest, its content is not."""
    with _opened(entry, folder) as file:
        header_bytes = entry.bytes - entry.data_bytes
        if not _PREFIX < header_bytes <= _MAX_HEADER:
            raise SnapshotError(
                entry.file,
                f"has {entry.bytes} bytes by the manifest, but dtype {entry.dtype} and shape "
                f"{list(entry.shape)} are {entry.data_bytes} and a header of at most {_MAX_HEADER}",
            )
        header = os.pread(file, header_bytes, 0)
        digest = xxhash.xxh3_128(header)
        memory = allocate(entry.data_bytes)
        target, at = memory.data, 0
        while at < len(target):
            chunk = target[at : at + _READ_CHUNK]
            got = os.preadv(file, [chunk], header_bytes + at)
            if got == 0:
                raise SnapshotError(entry.file, "became shorter while it was read")
            digest.update(chunk[:got])
            at += got
    _require_digest(entry, digest.hexdigest())
    _require_header(entry, header)
    return memory.view(entry.dtype).reshape(entry.shape)


def digest_file(entry: FileEntry, folder: int) -> None:
    """Check the size and digest of a file without reading its content as an array."""
    with _opened(entry, folder) as file, open(file, "rb", 0, closefd=False) as content:
        _require_digest(entry, file_digest(content, xxhash.xxh3_128).hexdigest())


def _require_digest(entry: FileEntry, found: str) -> None:
    if found != entry.xxh3_128:
        raise SnapshotError(
            entry.file, f"damaged: its digest is {found}, but the manifest says {entry.xxh3_128}"
        )


def _require_header(entry: FileEntry, header: bytes) -> None:
    expected = (
        f"{{'descr': '{entry.dtype}', 'fortran_order': False, 'shape': {entry.shape!r}, }}"
    ).encode()
    length = len(header) - _PREFIX
    prefix = _MAGIC + length.to_bytes(2, "little")
    if header != prefix + expected + b" " * (length - len(expected) - 1) + b"\n":
        shown = header[_PREFIX:].decode("latin-1").strip()[:120]
        raise SnapshotError(
            entry.file,
            f"its .npy header is not version 1.0 with {expected.decode()}, as the manifest says: "
            f"{shown!r}",
        )
