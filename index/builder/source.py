"""The ads table: its files, checked by their columns before any row is read.

Columns, by our names: `ad_id`, `sid` unless SIDs are joined, optional `ad_weight`, for each
attribute and set of the targeting schema `<name>` or `<name>_exclude` or both, and each entity. A
column of lists that the schema does not declare looks like a rule that would not be enforced, so it
is refused. So is `Country` in a table without `country`. Other columns are ignored, and the summary
names them.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.snapshot import require_ids
from grace.index.storage.strict_json import shown
from grace.index.tables import roles
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.roles import Role, both_names, missing, type_fault
from grace.index.tables.sid_table import sid_space_in, vocab_sizes_in
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import EXCLUDE_SUFFIX, TargetingSchema

ENTITY_MAP = "name a file under entity_ids in tables.yaml, which then numbers such ids"

OTHER_COLUMNS = ("title",)
"""Columns that a build does not read, but other commands do, so tables.yaml may rename them."""


@dataclass(frozen=True, slots=True)
class AdsFile:
    table: TableFile
    rows: int
    theirs: Mapping[str, str]  # the table's names of our columns, of those that the build reads

    @property
    def address(self) -> str:
        return self.table.address


@dataclass(frozen=True, slots=True)
class AdsSource:
    files: tuple[AdsFile, ...]
    ignored_columns: tuple[str, ...]
    sid_space: str | None  # what the files' metadata says, if they do
    vocab_sizes: tuple[int, ...] | None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """The columns that a build expects of an ads table."""

    schema: TargetingSchema
    without: tuple[str, ...] = ()  # attributes, sets and entities that it may lack
    sids_are_joined: bool = False
    mapped: frozenset[str] = frozenset()  # columns of ids that an id map numbers

    def __post_init__(self) -> None:
        known = (*self.schema.names, *self.schema.entities)
        for name in self.without:
            if name not in known:
                raise InputError(
                    f"--without {name}: not an attribute, set or entity of the targeting schema, "
                    f"which has: {', '.join(known) or 'none'}"
                )
        for name in sorted(self.mapped - {"ad_id", *self.schema.entities}):
            has = ", ".join(self.schema.entities) or "none"
            raise InputError(
                f"entity_ids: {name}: not an entity of the targeting schema, which has: {has}"
            )

    @property
    def entities(self) -> tuple[str, ...]:
        return tuple(name for name in self.schema.entities if name not in self.without)

    def role(self, name: str) -> Role:
        """Return the role of one of our columns."""
        is_mapped = name in self.mapped
        if name == "ad_id":
            return roles.NAME if is_mapped else roles.ID
        if name in self.schema.entities:
            return roles.ENTITY_NAME if is_mapped else roles.ENTITY
        return {"sid": roles.SID, "ad_weight": roles.WEIGHT}.get(name, roles.RULE)

    @property
    def known(self) -> tuple[str, ...]:
        """All columns that a build may read, by our names."""
        sid = () if self.sids_are_joined else ("sid",)
        return ("ad_id", *sid, "ad_weight", *self.schema.rule_columns, *self.entities)


def open_ads(source: TableSource, expected: ExpectedColumns) -> AdsSource:
    _check_renames(source, expected)
    files: list[AdsFile] = []
    ignored: set[str] = set()
    spaces: dict[str | None, str] = {}
    vocabularies: dict[tuple[int, ...] | None, str] = {}
    tables = source.tables()
    lines = [table for table in tables if table.format is Format.JSONL]
    keys = {name for table in lines for name in table.schema.names}
    for table in tables:
        # Lines leave out keys without a value, so a file may lack a key that others have.
        elsewhere = keys if table.format is Format.JSONL else set[str]()
        theirs = _columns(table, elsewhere, source, expected)
        mapped = {source.columns[name] for name in OTHER_COLUMNS if name in source.columns}
        read = {*theirs.values(), *_left_out(source, expected), *mapped}
        ignored.update(set(table.schema.names) - read)
        files.append(AdsFile(table, table.count_rows(), theirs))
        spaces.setdefault(sid_space_in(table), table.address)
        vocabularies.setdefault(vocab_sizes_in(table), table.address)
    opened = AdsSource(
        tuple(files),
        tuple(sorted(ignored)),
        _single(spaces, "grace.sid_space"),
        _single(vocabularies, "grace.vocab_sizes"),
    )
    if opened.rows == 0:
        raise InputError(f"{files[0].address}: the ads table has no rows; nothing to build")
    require_ids(opened.rows, "ads")
    return opened


def _check_renames(source: TableSource, expected: ExpectedColumns) -> None:
    known = (*expected.known, *expected.without, *OTHER_COLUMNS)
    for ours in source.columns:
        if ours not in known:
            raise InputError(
                f"ads.columns: {ours!r} is no column of an ads table with this targeting schema, "
                f"which has: {', '.join(dict.fromkeys(known))}"
            )


def _left_out(source: TableSource, expected: ExpectedColumns) -> set[str]:
    """Return the table's names of columns that `without` leaves out."""
    names = (column for name in expected.without for column in (name, name + EXCLUDE_SUFFIX))
    return {source.theirs(name) for name in names}


def _columns(
    table: TableFile, elsewhere: Set[str], source: TableSource, expected: ExpectedColumns
) -> Mapping[str, str]:
    """Return the table's names of our columns, after a check of each column.

    `elsewhere` are columns that the table may lack, because other files have them.
    """
    present = table.schema.names
    for ours, their in source.columns.items():
        if their not in present and their not in elsewhere:
            raise missing(table, their, f", named by ads.columns.{ours},")
    theirs = {
        name: source.theirs(name) for name in expected.known if source.theirs(name) in present
    }
    _require_columns(table, theirs, elsewhere, source, expected)
    _refuse_second_columns(table, theirs, source, expected)
    left_out = _left_out(source, expected)
    for their in source.ignore:
        if their not in present:
            raise missing(table, their, ", named by ads.ignore,")
        if their in theirs.values():
            raise InputError(
                f"{table.address}: column {their!r} is in ads.ignore, but a build reads it; "
                "take it out of ads.ignore, or of targeting.yaml"
            )
    for name, their in list(theirs.items()):
        kind = table.schema.field(their).type
        fault = type_fault(expected.role(name), table, their, _remedy(name, kind, expected))
        if fault is None:
            continue
        if their not in left_out:
            raise InputError(f"{table.address}: column {both_names(name, their)} {fault}")
        del theirs[name]
    read_or_named = {*theirs.values(), *left_out, *source.ignore}
    _refuse_unread_rules(table, read_or_named, source, expected)
    return theirs


def _refuse_unread_rules(
    table: TableFile, read_or_named: Set[str], source: TableSource, expected: ExpectedColumns
) -> None:
    """Refuse a column that looks like a rule by its type, or by its name in another case."""
    rules = map(source.theirs, (*expected.schema.rule_columns, *expected.entities))
    absent = [name for name in rules if name not in table.schema.names]
    alike = {name.strip().casefold(): name for name in absent}
    for field in table.schema:
        if field.name in read_or_named:
            continue
        rule = alike.get(field.name.strip().casefold())
        if rule is not None:
            raise InputError(
                f"{table.address}: column {field.name!r} would not be read: it differs from "
                f"{rule!r} only in case or blanks; rename it, or name it in ads.ignore of "
                "tables.yaml"
            )
        if _looks_like_a_rule(field):
            raise InputError(
                f"{table.address}: column {field.name!r} looks like a targeting rule, but the "
                "schema declares no such attribute or set; declare it, drop the column, or name it "
                "in ads.ignore of tables.yaml"
            )


def _refuse_second_columns(
    table: TableFile, theirs: Mapping[str, str], source: TableSource, expected: ExpectedColumns
) -> None:
    """Refuse a column that has our name of a rule, where `columns` names another for it."""
    for name in (*expected.schema.rule_columns, *expected.schema.entities):
        their = source.theirs(name)
        if their != name and name in table.schema.names and name not in theirs.values():
            raise InputError(
                f"{table.address}: column {name!r} would not be read, since ads.columns.{name} "
                f"names {their!r}; drop one of the two columns, or rename it"
            )


def _require_columns(
    table: TableFile,
    theirs: Mapping[str, str],
    elsewhere: Set[str],
    source: TableSource,
    expected: ExpectedColumns,
) -> None:
    needed = ["ad_id"] if expected.sids_are_joined else ["ad_id", "sid"]
    has = f"it has: {', '.join(table.schema.names)}"
    for name in needed:
        if name not in theirs:
            raise missing(table, source.theirs(name))
    if expected.sids_are_joined and source.theirs("sid") in table.schema.names:
        raise InputError(
            f"{table.address}: has a column {source.theirs('sid')!r}, and SIDs are to be joined; "
            "drop the column, or `sids`"
        )
    for name in (*expected.schema.names, *expected.entities):
        columns = {name, name + EXCLUDE_SUFFIX}
        if name in expected.without or columns & theirs.keys():
            continue
        if {source.theirs(column) for column in columns} & elsewhere:
            continue
        their = source.theirs(name)
        lacks = f"column {their!r} is missing, an entity of the targeting schema"
        so = "no ad belongs to one"
        if name not in expected.entities:
            lacks = f"columns {their!r} and {their + EXCLUDE_SUFFIX!r} are missing"
            lacks, so = f"{lacks}, a rule of the targeting schema", "no ad has such a rule"
        raise InputError(
            f"{table.address}: {lacks}; add it, name its column in tables.yaml, or build with "
            f"--without {name}: then {so}; {has}"
        )


def _looks_like_a_rule(field: pa.Field) -> bool:
    """Return whether a type holds several values: a rule that no code would read or enforce."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(pa.types.is_nested(kind)) or field.name.endswith(EXCLUDE_SUFFIX)


def _remedy(name: str, kind: pa.DataType, expected: ExpectedColumns) -> str:
    """Return the remedy for a column of another type; "" if a cast is the only one."""
    if name == "ad_id" and is_text(kind):
        return "--id-map FILE, or id_map in tables.yaml, numbers ads of any name"
    if name in expected.entities:
        numbers = ENTITY_MAP if is_text(kind) else "cast the column to int64"
        return f"{numbers}, or build with --without {name}"
    return ""


Stated = TypeVar("Stated")


def _single(found: Mapping[Stated | None, str], key: str) -> Stated | None:
    """Return the value that the files state, or None if none does."""
    said = [(value, address) for value, address in found.items() if value is not None]
    if len(said) > 1:
        (one, first), (two, second) = said[:2]
        raise InputError(
            f"{second}: metadata {key} is {shown(two)}, but {shown(one)} in {first}; "
            "files of one build share it"
        )
    return said[0][0] if said else None
