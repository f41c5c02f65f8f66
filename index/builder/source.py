"""The ads table: Parquet files, checked by their schemas before any row is read.

Columns: `ad_id` int64, `sid` list of integers, optional `ad_weight` float, for each attribute and
set of the targeting schema a list of strings `<name>` and `<name>_exclude`, null where the ad has
no such rule, and for each entity an integer, null where the ad belongs to none. A list column that
the schema does not declare looks like a rule that would not be enforced, so it is refused; other
columns are ignored, and the summary names them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grace.configs.errors import InputError
from grace.index.snapshot import require_ids
from grace.index.storage.strict_json import shown
from grace.index.targeting.schema import EXCLUDE_SUFFIX, TargetingSchema

SID_SPACE_KEY = b"grace.sid_space"
VOCAB_SIZES_KEY = b"grace.vocab_sizes"

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""The exceptions of reading a damaged file; the last one is for a column's name."""


@dataclass(frozen=True, slots=True)
class AdsFile:
    path: Path
    rows: int
    columns: tuple[str, ...]  # those that the build reads
    all_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdsSource:
    files: tuple[AdsFile, ...]
    ignored_columns: tuple[str, ...]
    sid_space: str | None  # what the files' metadata says, if they do
    vocab_sizes: tuple[int, ...] | None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def rule_columns(schema: TargetingSchema) -> tuple[str, ...]:
    """Include and exclude columns of the attributes, then of the sets, in the schema's order."""
    return tuple(column for name in schema.names for column in (name, name + EXCLUDE_SUFFIX))


def open_ads(
    paths: Sequence[Path], schema: TargetingSchema, without: Sequence[str] = ()
) -> AdsSource:
    """`without` names entities of the schema whose columns are not read."""
    for name in without:
        if name not in schema.entities:
            known = ", ".join(schema.entities) or "none"
            raise InputError(
                f"--without {name}: not an entity of the targeting schema, which has: {known}"
            )
    files: list[AdsFile] = []
    ignored: set[str] = set()
    spaces: dict[str, Path] = {}
    vocabularies: dict[str, Path] = {}
    for path in parquet_files(paths):
        arrow_schema, rows = _read_footer(path)
        columns = _check_columns(path, arrow_schema, schema, without)
        ignored.update(set(arrow_schema.names) - {*columns, *without})
        files.append(AdsFile(path, rows, columns, tuple(arrow_schema.names)))
        metadata = arrow_schema.metadata or {}
        for key, found in ((SID_SPACE_KEY, spaces), (VOCAB_SIZES_KEY, vocabularies)):
            if key in metadata:
                found.setdefault(metadata[key].decode(errors="replace"), path)
    source = AdsSource(
        tuple(files),
        tuple(sorted(ignored)),
        _single(spaces, "grace.sid_space"),
        _vocab_sizes(_single(vocabularies, "grace.vocab_sizes")),
    )
    if source.rows == 0:
        raise InputError(f"{files[0].path}: the ads table has no rows; nothing to build")
    require_ids(source.rows, "ads")
    return source


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def parquet_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a table that is given as files and folders."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files.extend(_in_folder(path))
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or folder")
    if not files:
        raise InputError("no ads given: name Parquet files or folders")
    repeated = [path for path in files if files.count(path) > 1]
    if repeated:
        raise InputError(f"{repeated[0]}: given twice; its ads would repeat")
    return files


def _in_folder(folder: Path) -> list[Path]:
    """Return its *.parquet files; refuse what looks like more of the table elsewhere in it."""
    inside = sorted(folder.glob("*.parquet"))
    for other in sorted(folder.rglob("*")):
        if other.suffix.lower() == ".parquet" and other not in inside:
            raise InputError(
                f"{other}: a folder's files must be named *.parquet and be directly in it; "
                "name this one with another --ads, or move it away"
            )
    if not inside:
        raise InputError(f"{folder}: no *.parquet file in this folder")
    return inside


def _read_footer(path: Path) -> tuple[pa.Schema, int]:
    try:
        with pq.ParquetFile(path) as file:
            found, footer = file.schema_arrow, file.metadata
            groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    except UNREADABLE as error:
        raise InputError(f"{path}: not a readable Parquet file: {first_line(error)}") from None
    if min(groups, default=0) < 0 or sum(groups) != footer.num_rows:
        raise InputError(
            f"{path}: damaged: its row groups hold {sum(groups)} rows, its footer says "
            f"{footer.num_rows}"
        )
    return found, footer.num_rows


def first_line(error: Exception) -> str:
    """Return the message without what Arrow adds: places in its sources."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_columns(
    path: Path, found: pa.Schema, schema: TargetingSchema, without: Sequence[str]
) -> tuple[str, ...]:
    repeated = [name for name in found.names if found.names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: column {repeated[0]!r} appears twice")
    entities = tuple(name for name in schema.entities if name not in without)
    known = ("ad_id", "sid", "ad_weight", *rule_columns(schema), *entities)
    for name in ("ad_id", "sid"):
        if name not in found.names:
            raise InputError(f"{path}: column {name!r} is missing")
    for name in entities:
        if name not in found.names:
            raise InputError(
                f"{path}: column {name!r} is missing, an entity of the targeting schema; add it, "
                f"or build with --without {name}: then no ad belongs to one"
            )
    for field in found:
        if field.name in entities:
            _check_entity_type(path, field)
        elif field.name in known:
            _check_type(path, field)
        elif field.name not in without and _looks_like_a_rule(field):
            raise InputError(
                f"{path}: column {field.name!r} looks like a targeting rule, but the schema "
                "declares no such attribute or set; declare it, or drop the column"
            )
    return tuple(name for name in known if name in found.names)


def _looks_like_a_rule(field: pa.Field) -> bool:
    """True for anything that holds several values: a rule that no code would read or enforce."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(pa.types.is_nested(kind)) or field.name.endswith(EXCLUDE_SUFFIX)


def _check_type(path: Path, field: pa.Field) -> None:
    kind, is_null = field.type, pa.types.is_null(field.type)
    holds = kind.value_type if is_list(kind) else None
    good, expected = {
        "ad_id": (pa.types.is_integer(kind) and kind != pa.uint64(), "int64"),
        "ad_weight": (pa.types.is_floating(kind) or is_null, "float"),
        "sid": (holds is not None and pa.types.is_integer(holds), "list<uint16>"),
    }.get(field.name, (is_null or (holds is not None and _is_text(holds)), "list<string>"))
    if not good:
        raise InputError(
            f"{path}: column {field.name!r} must be {expected}, got {kind}; "
            f"cast the column to {expected}"
        )


def _check_entity_type(path: Path, field: pa.Field) -> None:
    if not pa.types.is_integer(field.type) and not pa.types.is_null(field.type):
        raise InputError(
            f"{path}: column {field.name!r}, an entity of the targeting schema, must be int64, got "
            f"{field.type}; cast the column to int64, or build with --without {field.name}"
        )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # A column that holds nothing but nulls or empty lists is written as of type null.
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    )


def _single(found: dict[str, Path], key: str) -> str | None:
    if len(found) > 1:
        (one, first), (two, second) = list(found.items())[:2]
        raise InputError(
            f"{second}: metadata {key} is {shown(two)}, but {shown(one)} in {first}; "
            "files of one build share it"
        )
    return next(iter(found), None)


def _vocab_sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise InputError(
            f"metadata grace.vocab_sizes: expected sizes such as 512,512, got {shown(text)}"
        ) from None
