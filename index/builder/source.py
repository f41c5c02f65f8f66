"""The ads table: its files, checked by their columns before any row is read.

Columns, by our names: `ad_id`, `sid` unless SIDs are joined, optional `ad_weight`, for each name of
the targeting schema one or more of its columns, `clauses` or `rule`, and each entity. A build
refuses a column that the schema does not declare but that looks like a rule, by its lists or its
name's ending. It also refuses `Country` in a table without `country`. It ignores other columns, and
the summary names them.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.builder.rule_columns import role_of
from grace.index.proposal.roles import may_limit
from grace.index.snapshot import require_ids
from grace.index.tables import roles
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.roles import Role, both_names, missing, type_fault
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import CLAUSES, ENDINGS, EXPRESSION, TargetingSchema

ENTITY_MAP = "name a file under entity_ids in tables.yaml, which then numbers such ids"

_ROLES = {
    "sid": roles.SID,
    "ad_weight": roles.WEIGHT,
    CLAUSES: roles.CLAUSES,
    EXPRESSION: roles.TEXT,
}

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
    ignored_columns: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def columns_like_rules(self, schema: TargetingSchema, meant: Collection[str]) -> list[str]:
        """Return ignored columns that may be rules, which nobody would enforce."""
        names = (*schema.rule_columns, CLAUSES, EXPRESSION)
        ours = [f"{name}{ending}" for name in names for ending in ("", *ENDINGS)]
        ignored = [each for each in self.ignored_columns if each not in meant]
        return [each for each in ignored if may_limit(each, ours)]


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """The columns that a build expects of an ads table."""

    schema: TargetingSchema
    without: tuple[str, ...] = ()  # names and entities that it may lack
    sids_are_joined: bool = False
    mapped: frozenset[str] = frozenset()  # columns of ids that an id map numbers
    # the table has some of a catalogue's ads, so its lines may all leave out the same key
    partial: bool = False

    def __post_init__(self) -> None:
        known = (*self.schema.names, *self.schema.entities)
        for name in self.without:
            if name not in known:
                raise InputError(
                    f"--without {name}: not a name or entity of the targeting schema, which "
                    f"has: {', '.join(known) or 'none'}"
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
        is_mapped = name in self.mapped
        if name == "ad_id":
            return roles.NAME if is_mapped else roles.ID
        if name in self.schema.entities:
            return roles.ENTITY_NAME if is_mapped else roles.ENTITY
        return _ROLES.get(name) or role_of(self.schema, name)

    @property
    def known(self) -> tuple[str, ...]:
        """All columns that a build may read, by our names."""
        sid = () if self.sids_are_joined else ("sid",)
        rules = (*self.schema.rule_columns, CLAUSES, EXPRESSION)
        return ("ad_id", *sid, "ad_weight", *rules, *self.entities)


def open_ads(source: TableSource, expected: ExpectedColumns) -> AdsSource:
    known = (*expected.known, *expected.without, *OTHER_COLUMNS)
    for ours in source.columns:
        if ours not in known:
            raise InputError(
                f"ads.columns: {ours!r} is no column of an ads table with this targeting schema, "
                f"which has: {', '.join(dict.fromkeys(known))}"
            )
    tables = source.tables()
    lines = [table for table in tables if table.format is Format.JSONL]
    keys = frozenset(name for table in lines for name in table.schema.names)
    if expected.partial:
        keys |= {*map(source.theirs, expected.known), *source.columns.values(), *source.ignore}
    names = frozenset(name for table in tables for name in table.schema.names)
    files: list[AdsFile] = []
    ignored: set[str] = set()
    for table in tables:
        # Lines leave out keys without a value, so a file may lack a key that others have.
        elsewhere = keys if table.format is Format.JSONL else frozenset[str]()
        columns = TableColumns(table, elsewhere, names, source, expected)
        theirs = columns.checked()
        mapped = {source.columns[name] for name in OTHER_COLUMNS if name in source.columns}
        ignored.update(set(table.schema.names) - {*theirs.values(), *columns.left_out, *mapped})
        files.append(AdsFile(table, table.count_rows(), theirs))
    opened = AdsSource(tuple(files), tuple(sorted(ignored)))
    if opened.rows == 0 and not expected.partial:
        raise InputError(f"{files[0].address}: the ads table has no rows; nothing to build")
    require_ids(opened.rows, "ads")
    return opened


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one table. It may lack those `elsewhere`, which other files have."""

    table: TableFile
    elsewhere: Set[str]
    everywhere: Set[str]  # the columns of all files
    source: TableSource
    expected: ExpectedColumns

    @property
    def left_out(self) -> set[str]:
        """The table's names of columns that `without` leaves out."""
        without = self.expected.without
        columns = self.expected.schema.columns
        return {self.source.theirs(each) for name in without for each in columns.get(name, (name,))}

    def checked(self) -> Mapping[str, str]:
        """Return the table's names of our columns, after a check of each column."""
        table, source, expected = self.table, self.source, self.expected
        present = table.schema.names
        for ours, their in source.columns.items():
            if their not in present and their not in self.elsewhere | self.left_out:
                raise missing(table, their, f", named by ads.columns.{ours},")
        names = {name: source.theirs(name) for name in expected.known}
        theirs = {name: their for name, their in names.items() if their in present}
        self._require_ids_and_sids(theirs)
        self._require_rules(theirs)
        of_others = self.everywhere - self.elsewhere - self.left_out
        for name in (*expected.schema.rule_columns, CLAUSES, EXPRESSION):
            column = source.theirs(name)
            if column in of_others and name not in theirs:
                raise missing(table, column, ", which other files have,")
        self._require_clauses(theirs)
        for name, their in list(theirs.items()):
            fault = self.type_fault(name, their)
            if fault is not None and their not in self.left_out:
                raise self._error(f"column {both_names(name, their)} {fault}")
            if fault is not None:
                del theirs[name]
        self._require_all_read(theirs)
        return theirs

    def _error(self, fault: str) -> InputError:
        return InputError(f"{self.table.address}: {fault}")

    def _require_ids_and_sids(self, theirs: Mapping[str, str]) -> None:
        joined, sid = self.expected.sids_are_joined, self.source.theirs("sid")
        for name in ("ad_id",) if joined else ("ad_id", "sid"):
            if name not in theirs:
                raise missing(self.table, self.source.theirs(name))
        if joined and sid in self.table.schema.names:
            raise self._error(
                f"has a column {sid!r}, and SIDs are to be joined; drop the column, or `sids`"
            )

    def _require_rules(self, theirs: Mapping[str, str]) -> None:
        source, expected = self.source, self.expected
        has = f"it has: {', '.join(self.table.schema.names)}"
        in_clauses = self._names_in_clauses(theirs)
        for name in (*expected.schema.names, *expected.entities):
            columns = expected.schema.columns.get(name, (name,))
            if name in expected.without or theirs.keys() & {*columns}:
                continue
            their_columns = {source.theirs(column) for column in columns}
            if their_columns & self.elsewhere or name in in_clauses:
                continue
            kind, so = "a rule", "no ad has such a rule"
            if name in expected.entities:
                kind, so = "an entity", "no ad belongs to one"
            lacking = " and ".join(repr(source.theirs(column)) for column in columns)
            are = "columns {} are" if len(columns) > 1 else "column {} is"
            raise self._error(
                f"{are.format(lacking)} missing, {kind} of the targeting schema; add it, name its "
                f"column in tables.yaml, or build with --without {name}: then {so}; {has}"
            )

    def _clause_fields(self, theirs: Mapping[str, str]) -> list[pa.Field] | None:
        """Return the fields of the structs of clauses; None without such a column."""
        their = theirs.get(CLAUSES)
        if their is None or self.type_fault(CLAUSES, their):
            return None
        kind = self.table.schema.field(their).type
        return None if pa.types.is_null(kind) else [*kind.value_type]

    def _names_in_clauses(self, theirs: Mapping[str, str]) -> set[str]:
        """Return the names that clauses or expressions of this table may have rules on."""
        schema, found = self.expected.schema, set[str]()
        fields = self._clause_fields(theirs) or []
        found |= {schema.name_of[each.name] for each in fields if each.name in schema.name_of}
        if EXPRESSION in theirs:
            kind = self.table.schema.field(theirs[EXPRESSION]).type
            others = {f.name for f in schema.flights} | {p.name for p in schema.properties}
            found |= set() if pa.types.is_null(kind) else {*schema.names} - others
        return found

    def _require_clauses(self, theirs: Mapping[str, str]) -> None:
        """Refuse clauses with a field that is no rule, which no code would enforce."""
        if {CLAUSES, EXPRESSION} <= theirs.keys():
            raise self._error(f"has columns {CLAUSES!r} and {EXPRESSION!r}; drop one of them")
        fields = self._clause_fields(theirs)
        if fields is None:
            return
        their, schema = theirs[CLAUSES], self.expected.schema
        names = [field.name for field in fields]
        if not names:
            raise self._error(f"column {their!r}: its clauses have no fields; name some")
        for clause_field in fields:
            name = clause_field.name
            if names.count(name) > 1:
                raise self._error(f"column {their!r}: it has two fields {name!r}; drop one")
            if name not in schema.rule_columns:
                raise self._error(
                    f"column {their!r}: its field {name!r} is no rule of the targeting schema; "
                    "declare it, or drop the field"
                )
            role = role_of(schema, name)
            if not role.fits(clause_field.type):
                raise self._error(
                    f"column {their!r}: its field {name!r} must be {role.types}, got "
                    f"{clause_field.type}"
                )

    def type_fault(self, name: str, their: str) -> str | None:
        kind, remedy = self.table.schema.field(their).type, ""  # none: only a cast helps
        if name == "ad_id" and is_text(kind):
            remedy = "id_map in tables.yaml numbers ads of any name"
        if name in self.expected.entities:
            numbers = ENTITY_MAP if is_text(kind) else "cast the column to int64"
            remedy = f"{numbers}, or build with --without {name}"
        return type_fault(self.expected.role(name), self.table, their, remedy)

    def _require_all_read(self, theirs: Mapping[str, str]) -> None:
        """Refuse a column that is not read, but looks like a rule by its name or type."""
        source, schema, present = self.source, self.expected.schema, self.table.schema.names
        for their in source.ignore:
            if their not in present and their not in self.elsewhere:
                raise missing(self.table, their, ", named by ads.ignore,")
            if their in theirs.values():
                raise self._error(
                    f"column {their!r} is in ads.ignore, but a build reads it; take it out of "
                    "ads.ignore, or of targeting.yaml"
                )
        named = {*theirs.values(), *self.left_out, *source.ignore}
        ours = (*schema.rule_columns, CLAUSES, EXPRESSION)
        rules = map(source.theirs, (*ours, *self.expected.entities))
        alike = {name.strip().casefold(): name for name in rules if name not in present}
        for field in self.table.schema:
            name, their = field.name, source.theirs(field.name)
            is_ours = name in (*ours, *schema.entities)
            if is_ours and their != name and name not in theirs.values():
                raise self._error(
                    f"column {name!r} would not be read, since ads.columns.{name} names "
                    f"{their!r}; drop one of the two columns, or rename it"
                )
            if name in named:
                continue
            rule = alike.get(name.strip().casefold())
            if rule is not None:
                raise self._error(
                    f"column {name!r} would not be read: it differs from {rule!r} only in "
                    "case or blanks; rename it, or name it in ads.ignore of tables.yaml"
                )
            if _looks_like_a_rule(field):
                raise self._error(
                    f"column {name!r} looks like a targeting rule, but the schema declares "
                    "no such name; declare it, drop the column, or name it in ads.ignore of "
                    "tables.yaml"
                )


def _looks_like_a_rule(field: pa.Field) -> bool:
    """Return whether an undeclared column looks like a rule, by its type or its name."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(pa.types.is_nested(kind)) or field.name.endswith(ENDINGS)
