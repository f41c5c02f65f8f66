"""JSON lines: an object per line. Any line may add a column; a column's values have one type."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.json as json

from grace.configs.errors import InputError
from grace.index.tables.addresses import first_line
from grace.index.tables.cells import with_types

_BLOCK = 1 << 24
_LONGEST_LINE = 1 << 28
_BOM = b"\xef\xbb\xbf"


def read_header(stream: BinaryIO, address: str) -> tuple[pa.Schema, int]:
    schema, rows = pa.schema([]), 0
    for block in _blocks(stream, address):
        table = _parsed(block, address, rows)
        # Arrow takes texts such as 2024-01-31 for times; a JSON text stays one.
        own = with_types(table.schema, lambda k: pa.string() if pa.types.is_timestamp(k) else k)
        try:
            schema = pa.unify_schemas([schema, own], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{address}: a column changes its type near row {rows + 1}: {first_line(error)}; "
                "write one type per column"
            ) from None
        rows += table.num_rows
    if not rows:
        raise InputError(f"{address}: has no rows; write one JSON object per line")
    _require_one_case(schema.names, address)
    # Arrow reads lists that hold only nulls into arrays with too few elements.
    null, texts = pa.list_(pa.null()), pa.list_(pa.string())
    return with_types(schema, lambda kind: texts if kind == null else kind), rows


def _require_one_case(names: Sequence[str], address: str) -> None:
    """Refuse `Country` next to `country`: some lines would lose their rule."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(name.casefold(), name)
        if other != name:
            raise InputError(
                f"{address}: keys {other!r} and {name!r} differ only in case; write the same key "
                "in every line"
            )


def batches(
    stream: BinaryIO, address: str, schema: pa.Schema, columns: Sequence[str], _rows: int
) -> Iterator[pa.RecordBatch]:
    read = pa.schema([schema.field(name) for name in columns])
    rows = 0
    for block in _blocks(stream, address):
        table = _parsed(block, address, rows, read)
        rows += table.num_rows
        yield from table.select(list(columns)).combine_chunks().to_batches()


def _parsed(block: bytes, address: str, row: int, schema: pa.Schema | None = None) -> pa.Table:
    reading = json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    rest = "infer" if schema is None else "ignore"
    parsing = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=rest)
    try:
        block.decode()
        return json.read_json(pa.BufferReader(block), reading, parsing)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        fault, within_block, at = first_line(error).partition(" in row ")
        place = row + 1 + (int(at) if at.isdecimal() else 0)
        raise InputError(
            f"{address}: row {place}: {fault if within_block else first_line(error)}; write one "
            "JSON object per line (an array is none), and one type per column"
        ) from None


def _blocks(stream: BinaryIO, address: str) -> Iterator[bytes]:
    """Cut the text at ends of lines, about _BLOCK bytes at a time."""
    rest = stream.read(len(_BOM)).removeprefix(_BOM)
    while part := stream.read(_BLOCK):
        end = part.rfind(b"\n") + 1
        if end and (block := rest + part[:end]).strip():
            yield block
        rest = part[end:] if end else rest + part
        if len(rest) > _LONGEST_LINE:
            raise InputError(
                f"{address}: a line of more than {_LONGEST_LINE >> 20} MiB; write one JSON object "
                "per line"
            )
    if rest.strip():
        yield rest
