"""Read the ads of a reply from an ads table, and print an ad with its reasons."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grace.cli.options import data_ids
from grace.configs.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from grace.index.matching.explain import Reason
    from grace.index.tables.data_folder import TableSource
    from grace.index.tables.ids import DataIds
    from grace.index.tables.table_file import TableFile
    from grace.index.targeting.schema import TargetingSchema
    from grace.index.users.user_rows import UserAttributes

TITLE = "title"
_BATCH_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad of the table, and its rules for the user. All pass if the snapshot has this table."""

    item_id: str | None  # the table's id, if the folder's ids are known
    title: str
    reasons: "tuple[Reason, ...]"


@dataclass(frozen=True, slots=True)
class AdsTable:
    """The ads as `grace build` reads them: where they are, their rules, and their numbers."""

    source: "TableSource"
    schema: "TargetingSchema"
    ids: "DataIds | None" = None  # None: ids are integers


def shown_table(ads: str | None, targeting: Path | None, data: Path | None) -> AdsTable | None:
    """Return the table of --ads or of --data; None without both.

    Without the file of the targeting schema, it is `targeting.yaml` next to the table.
    """
    from grace.index.tables.data_folder import TableSource, read_data_folder
    from grace.index.targeting.schema import load_schema

    if ads is not None and data is not None:
        raise InputError("two tables to show: give --data FOLDER, or --ads TABLE, and not both")
    if data is not None:
        folder = read_data_folder(data)
        return AdsTable(folder.ads, load_schema(targeting or folder.targeting), data_ids(data))
    if ads is None:
        return None
    return AdsTable(TableSource((ads,)), load_schema(targeting or _schema_file(ads)))


def _schema_file(ads: str) -> Path:
    from grace.index.tables.addresses import is_url
    from grace.index.tables.data_folder import TARGETING_FILE

    table = Path(ads)
    path = (table if table.is_dir() else table.parent) / TARGETING_FILE
    if is_url(ads) or not path.is_file():
        raise InputError(
            f"--ads {ads}: there is no {TARGETING_FILE} next to it: give --targeting FILE, the "
            "schema that the snapshot was built with"
        )
    return path


def known_ads(
    table: AdsTable, ad_ids: Sequence[int], user: "UserAttributes"
) -> Mapping[int, KnownAd]:
    """Read the ads with these ids."""
    found: dict[int, KnownAd] = {}
    for file in table.source.tables():
        found.update(_ads_in(file, table, ad_ids, user))
    return found


def values_of_no_ad(table: AdsTable, user: "UserAttributes") -> list[str]:
    """Return a sentence about each user value that no ad's rule lists.

    The schema lists the values of attributes. The table lists those of sets.
    """
    listed: dict[str, set[str]] = {each.name: {*each.values} for each in table.schema.attributes}
    sets = {each.name for each in table.schema.sets} & {name for name in user if user[name]}
    listed |= {name: set() for name in sets}
    for file in table.source.tables() if sets else ():
        for name, values in _listed_values(file, table, sets):
            listed[name] |= values
    return [
        f"{name}: no ad's rule lists {value!r}{_other_case(value, listed[name])}"
        for name, values in sorted(user.items())
        for value in values
        if value not in listed.get(name, values)
    ]


def _other_case(value: str, listed: Set[str]) -> str:
    alike = sorted(each for each in listed if each.casefold() == value.casefold())
    return f"; did you mean {alike[0]!r}?" if alike else ""


def _listed_values(
    file: "TableFile", table: AdsTable, names: Set[str]
) -> Iterator[tuple[str, set[str]]]:
    """Return the distinct values that the rules on these names list, batch by batch."""
    import pyarrow as pa

    from grace.index.targeting.schema import EXCLUDE_SUFFIX

    rules = {
        theirs: ours.removesuffix(EXCLUDE_SUFFIX)
        for ours, theirs in _rule_columns(file.schema, table).items()
        if ours.removesuffix(EXCLUDE_SUFFIX) in names
    }
    for batch in file.batches(list(rules), _BATCH_ROWS) if rules else ():
        for theirs, name in rules.items():
            lists = _list_column(batch.column(theirs), file)
            if not pa.types.is_null(lists.type):
                yield name, {*lists.flatten().drop_null().unique().to_pylist()}


def _ads_in(
    file: "TableFile", table: AdsTable, ad_ids: Sequence[int], user: "UserAttributes"
) -> Iterator[tuple[int, KnownAd]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from grace.index.matching.explain import explain_lists

    key = table.source.theirs("ad_id")
    if key not in file.schema.names:
        raise InputError(f"{file.address}: column {key!r} is missing; name an ads table")
    rules = _rule_columns(file.schema, table)
    title = _title_column(file.schema, table.source.theirs(TITLE), {key, *rules.values()})
    columns = dict.fromkeys([key, *([title] if title else []), *rules.values()])
    names = [*map(str, ad_ids)] if table.ids is None else table.ids.names("ad", ad_ids)
    ad_of = {name: ad for name, ad in zip(names, ad_ids, strict=True) if name is not None}
    wanted = pa.array(list(ad_of), pa.string())
    for batch in file.batches(list(columns), _BATCH_ROWS):
        keys = _keys(batch.column(key), file, table)
        here = pc.is_in(keys, value_set=wanted)
        rows = batch.filter(here)
        lists = {ours: _lists(rows.column(theirs), file) for ours, theirs in rules.items()}
        titles = rows.column(title).to_pylist() if title else [None] * rows.num_rows
        for row, text in enumerate(keys.filter(here).to_pylist()):
            values = {ours: listed[row] for ours, listed in lists.items()}
            item_id = None if table.ids is None else text
            reasons = explain_lists(table.schema, values, user)
            yield ad_of[text], KnownAd(item_id, str(titles[row] or ""), reasons)


def _keys(column: "pa.Array", file: "TableFile", table: AdsTable) -> "pa.Array":
    """Return the ads' ids as texts."""
    import pyarrow as pa

    from grace.index.tables.addresses import Format
    from grace.index.tables.cells import integers

    is_mapped = table.ids is not None and "ad" in table.ids.mapped
    if not is_mapped and file.format is Format.CSV:
        column, _ = integers(column)
    return column.cast(pa.string())


def _lists(column: "pa.Array", file: "TableFile") -> list[list[str] | None]:
    values: list[list[str] | None] = _list_column(column, file).to_pylist()
    return values


def _list_column(column: "pa.Array", file: "TableFile") -> "pa.Array":
    from grace.index.tables.addresses import Format
    from grace.index.tables.cells import rule_lists

    is_csv = file.format is Format.CSV
    return rule_lists(column, file.list_separator, is_csv=is_csv)


def ad_lines(
    place: int,
    title: str,
    ad_id: int | str,
    facts: str,
    reasons: "Sequence[Reason]",
) -> tuple[str, str]:
    """Return two lines: the ad with some facts, and why the user may see it."""
    why = "; ".join(map(str, reasons)) or "no rule: it is for everyone"
    return f"    {place}. {title} (ad {ad_id}, {facts})", f"       {why}"


def _title_column(schema: "pa.Schema", title: str, others: Set[str]) -> str | None:
    """Return the title's column, or else the first one of texts that is none of the others."""
    from grace.index.tables.cells import is_text

    texts = [field.name for field in schema if is_text(field.type) and field.name not in others]
    return title if title in texts else next(iter(texts), None)


def _rule_columns(table: "pa.Schema", ads: AdsTable) -> dict[str, str]:
    """Return the columns of rules, ours and the table's."""
    from grace.index.builder.source import rule_columns

    theirs = {name: ads.source.theirs(name) for name in rule_columns(ads.schema)}
    return {ours: their for ours, their in theirs.items() if their in table.names}
