"""Read the ads of a reply from an ads table, and print an ad with its reasons."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grace.cli.options import integer
from grace.configs.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from grace.index.matching.explain import Reason
    from grace.index.tables.data_folder import TableSource
    from grace.index.tables.item_numbers import IdMap
    from grace.index.tables.table_file import TableFile
    from grace.index.users.user_rows import UserAttributes

TITLE = "title"
_BATCH_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad of the table. The server has tested its rules, so all `reasons` pass."""

    item_id: str | None  # the table's id, if an id map numbers it
    title: str
    reasons: "tuple[Reason, ...]"


@dataclass(frozen=True, slots=True)
class AdsTable:
    """The ads as `grace build` reads them: where they are, and what numbers their ids."""

    source: "TableSource"
    names: "IdMap | None" = None  # None: ids are integers
    rules: tuple[str, ...] | None = None  # of the targeting schema; None: every column of lists


def shown_table(ads: str | None, data: Path | None) -> AdsTable | None:
    """Return the table of --ads or of --data; None without both."""
    from grace.index.builder.source import rule_columns
    from grace.index.tables.data_folder import TableSource, read_data_folder
    from grace.index.tables.item_numbers import IdMap
    from grace.index.targeting.schema import load_schema

    if ads is not None and data is not None:
        raise InputError("two tables to show: give --data FOLDER, or --ads TABLE, and not both")
    if data is None:
        return None if ads is None else AdsTable(TableSource((ads,)))
    folder = read_data_folder(data)
    names = None if folder.id_map is None else IdMap.read(folder.id_map)
    return AdsTable(folder.ads, names, rule_columns(load_schema(folder.targeting)))


def number_of(ad: str, table: AdsTable | None) -> int:
    """Return the number of an ad that is given by its id in the table."""
    if table is not None and table.names is not None:
        number = table.names.find(ad)
        if number is None:
            raise InputError(f"--ad {ad}: not in the id map; name an ad that was built")
        return number
    number = integer(ad, 0, 2**63 - 1)
    if number is None:
        raise InputError(
            f"--ad {ad}: ids are 0 to 2^63 - 1; give --data FOLDER if its id map numbers the ads"
        )
    return number


def known_ads(
    table: AdsTable, ad_ids: Sequence[int], user: "UserAttributes"
) -> Mapping[int, KnownAd]:
    """Read the ads with these ids."""
    found: dict[int, KnownAd] = {}
    for file in table.source.tables():
        found.update(_ads_in(file, table, ad_ids, user))
    return found


def _ads_in(
    file: "TableFile", table: AdsTable, ad_ids: Sequence[int], user: "UserAttributes"
) -> Iterator[tuple[int, KnownAd]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    key = table.source.theirs("ad_id")
    if key not in file.schema.names:
        raise InputError(f"{file.address}: column {key!r} is missing; name an ads table")
    rules = _rule_columns(file.schema, table)
    title = _title_column(file.schema, table.source.theirs(TITLE), {key, *rules.values()})
    columns = dict.fromkeys([key, *([title] if title else []), *rules.values()])
    names = None if table.names is None else table.names.known(ad_ids)
    ad_of = {str(ad) if names is None else names.get(ad, ""): ad for ad in ad_ids}
    wanted = pa.array(list(ad_of), pa.string())
    for batch in file.batches(list(columns), _BATCH_ROWS):
        keys = _keys(batch.column(key), file, table)
        here = pc.is_in(keys, value_set=wanted)
        rows = batch.filter(here)
        lists = {ours: _lists(rows.column(theirs), file) for ours, theirs in rules.items()}
        titles = rows.column(title).to_pylist() if title else [None] * rows.num_rows
        for row, text in enumerate(keys.filter(here).to_pylist()):
            values = {ours: listed[row] for ours, listed in lists.items()}
            item_id = None if names is None else text
            yield (
                ad_of[text],
                KnownAd(item_id, str(titles[row] or ""), tuple(_reasons(values, user))),
            )


def _keys(column: "pa.Array", file: "TableFile", table: AdsTable) -> "pa.Array":
    """Return the ads' ids as texts."""
    import pyarrow as pa

    from grace.index.tables.addresses import Format
    from grace.index.tables.cells import integers

    if table.names is None and file.format is Format.CSV:
        column, _ = integers(column)
    return column.cast(pa.string())


def _lists(column: "pa.Array", file: "TableFile") -> list[list[str] | None]:
    from grace.index.tables.addresses import Format
    from grace.index.tables.cells import split_cells, text_lists

    is_csv = file.format is Format.CSV
    lists = split_cells(column, file.list_separator) if is_csv else text_lists(column)
    values: list[list[str] | None] = lists.to_pylist()
    return values


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


def _rule_columns(schema: "pa.Schema", table: AdsTable) -> dict[str, str]:
    """Return the columns of rules, ours and the table's."""
    from grace.index.tables.cells import is_text_list

    if table.rules is None:
        return {field.name: field.name for field in schema if is_text_list(field.type)}
    theirs = {name: table.source.theirs(name) for name in table.rules}
    return {ours: their for ours, their in theirs.items() if their in schema.names}


def _reasons(row: Mapping[str, list[str] | None], user: "UserAttributes") -> "Iterator[Reason]":
    from grace.index.matching.explain import allowing
    from grace.index.targeting.schema import EXCLUDE_SUFFIX

    for name in dict.fromkeys(column.removesuffix(EXCLUDE_SUFFIX) for column in row):
        include, exclude = row.get(name) or (), row.get(name + EXCLUDE_SUFFIX) or ()
        reason = allowing(name, include, exclude, user.get(name, ()))
        if reason is not None:
            yield reason
