"""Read the ads of a reply from an ads table, and print an ad with its reasons."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.configs.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from grace.index.matching.explain import Reason
    from grace.index.users.user_rows import UserAttributes

TITLE = "title"


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad of the table. The server has tested its rules, so all `reasons` pass."""

    title: str
    reasons: "tuple[Reason, ...]"


def known_ads(table: Path, ad_ids: Sequence[int], user: "UserAttributes") -> Mapping[int, KnownAd]:
    """Read the ads with these ids from a Parquet file or folder, as `grace build` takes it."""
    import pyarrow.parquet as pq

    from grace.index.builder.source import UNREADABLE, first_line, parquet_files

    found: dict[int, KnownAd] = {}
    for file in parquet_files([table]):
        try:
            schema = pq.read_schema(file)
            if "ad_id" not in schema.names:
                raise InputError(f"{file}: column 'ad_id' is missing; name an ads table")
            title, rules = _title_column(schema), _rule_columns(schema)
            columns = ["ad_id", *([title] if title else []), *rules]
            rows = pq.read_table(file, columns=columns, filters=[("ad_id", "in", list(ad_ids))])
        except UNREADABLE as error:
            fault = f"not a readable ads table: {first_line(error)}"
            raise InputError(f"{file}: {fault}") from None
        for row in rows.to_pylist():
            found[row["ad_id"]] = KnownAd(
                str(row[title] or "") if title else "", tuple(_reasons(row, rules, user))
            )
    return found


def ad_lines(
    place: int,
    title: str,
    ad_id: int,
    facts: str,
    reasons: "Sequence[Reason]",
) -> tuple[str, str]:
    """Return two lines: the ad with some facts, and why the user may see it."""
    why = "; ".join(map(str, reasons)) or "no rule: it is for everyone"
    return f"    {place}. {title} (ad {ad_id}, {facts})", f"       {why}"


def _title_column(schema: "pa.Schema") -> str | None:
    """Return `title`, or else the first column of texts. Columns of rules are lists."""
    import pyarrow as pa

    texts = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    return TITLE if TITLE in texts else next(iter(texts), None)


def _rule_columns(schema: "pa.Schema") -> list[str]:
    """Return the columns of rules, which are lists of texts."""
    import pyarrow as pa

    from grace.index.builder.source import is_list

    return [
        field.name
        for field in schema
        if is_list(field.type)
        and (
            pa.types.is_string(field.type.value_type)
            or pa.types.is_large_string(field.type.value_type)
        )
    ]


def _reasons(
    row: Mapping[str, Any], columns: Iterable[str], user: "UserAttributes"
) -> "Iterator[Reason]":
    from grace.index.matching.explain import allowing
    from grace.index.targeting.schema import EXCLUDE_SUFFIX

    for name in dict.fromkeys(column.removesuffix(EXCLUDE_SUFFIX) for column in columns):
        include, exclude = row.get(name) or (), row.get(name + EXCLUDE_SUFFIX) or ()
        reason = allowing(name, include, exclude, user.get(name, ()))
        if reason is not None:
            yield reason
