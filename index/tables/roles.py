"""The roles of columns: the types that may play each, and the words of a refusal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_list, is_rule, is_text
from grace.index.tables.table_file import TableFile

_Fits: TypeAlias = Callable[[pa.DataType], bool]
_OTHER_FORMAT = "write the table as JSON lines or Parquet: a CSV cannot hold them"


@dataclass(frozen=True, slots=True)
class Role:
    """`types` names the types in words. A CSV has only texts, which `rows.py` reads by the role."""

    types: str
    fits: _Fits
    may_be_null: bool = False  # so a column without any value may have the type null
    splits: bool = False  # a text between separators has its values
    in_csv: bool = True  # a CSV may hold it


def _one(*kinds: _Fits) -> _Fits:
    return lambda kind: any(is_kind(kind) for is_kind in kinds)


def _list_of(*kinds: _Fits) -> _Fits:
    return lambda kind: is_list(kind) and _one(*kinds)(kind.value_type)


_INTEGER, _FLOAT, _TIME = pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp

ID = Role("int64", _INTEGER)
NAME = Role("int64 or text", _one(_INTEGER, is_text))
ENTITY = Role("int64", _INTEGER, may_be_null=True)
ENTITY_NAME = Role("int64 or text", _one(_INTEGER, is_text), may_be_null=True)
SID = Role("list<uint16>", _list_of(_INTEGER), splits=True)
RULE = Role("list<string>, or one text, integer or boolean", is_rule, may_be_null=True)
GROUPS = Role(
    "list<list<string>>",
    lambda kind: _list_of(is_list)(kind) and is_rule(kind.value_type),
    may_be_null=True,
    in_csv=False,
)
WEIGHT = Role("float", _one(_INTEGER, _FLOAT), may_be_null=True)
NUMBER = Role("float", _one(_INTEGER, _FLOAT, pa.types.is_decimal), may_be_null=True)
TIME = Role("int64, or a time", _one(_INTEGER, is_text, _TIME))
_DATE = pa.types.is_date
MOMENT = Role("timestamp, date, text, or int64", _one(_INTEGER, is_text, _TIME, _DATE), True)
CLAUSES = Role("list<struct>", _list_of(pa.types.is_struct), may_be_null=True, in_csv=False)
TEXT = Role("text", is_text, may_be_null=True)
VECTOR = Role("list<float32>", _list_of(_INTEGER, _FLOAT))


def both_names(ours: str, theirs: str) -> str:
    """Return a column's name as a message shows it: the table's, and ours if that is another."""
    return repr(ours) if ours == theirs else f"{theirs!r}, our {ours!r},"


def missing(file: TableFile, column: str, more: str = "") -> InputError:
    """Return the refusal of a table without this column, by the table's name of it."""
    return InputError(
        f"{file.address}: column {column!r}{more} is missing; it has: "
        f"{', '.join(file.schema.names)}"
    )


def type_fault(role: Role, file: TableFile, column: str, remedy: str = "") -> str | None:
    """Return why a column of the table cannot play the role, with the remedy; None if it can."""
    kind = file.schema.field(column).type
    splits = role.splits and is_text(kind) and file.list_separator is not None
    is_csv = file.format is Format.CSV
    if splits or role.fits(kind) or (is_csv and role.in_csv):
        return None
    if role.may_be_null and pa.types.is_null(kind):
        return None
    cast = f"cast the column to {role.types.split(',')[0]}"
    return f"must be {role.types}, got {kind}; {remedy or (_OTHER_FORMAT if is_csv else cast)}"


def require_column(role: Role, file: TableFile, ours: str, theirs: str, hint: str = "") -> None:
    """Refuse a table without this column, or with one that cannot play the role."""
    if theirs not in file.schema.names:
        raise missing(file, theirs, hint)
    fault = type_fault(role, file, theirs)
    if fault is not None:
        raise InputError(f"{file.address}: column {both_names(ours, theirs)} {fault}")
