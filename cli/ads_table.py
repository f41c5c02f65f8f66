"""Read the ads of a reply from an ads table, and print an ad with its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grace.configs.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from grace.index.matching.explain import Reason
    from grace.index.targeting.schema import TargetingSchema
    from grace.index.users.user_rows import UserAttributes

TITLE = "title"
SCHEMA_FILE = "targeting.yaml"


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad of the table, and its rules for the user. All pass if the snapshot has this table."""

    title: str
    reasons: "tuple[Reason, ...]"


def known_ads(
    table: Path, targeting: Path | None, ad_ids: Sequence[int], user: "UserAttributes"
) -> Mapping[int, KnownAd]:
    """Read the ads with these ids from a Parquet file or folder, as `grace build` takes it.

    Without the file of the targeting schema, it is `targeting.yaml` next to the table.
    """
    import pyarrow.parquet as pq

    from grace.index.builder.source import UNREADABLE, first_line, parquet_files
    from grace.index.matching.explain import explain_lists

    files, targeting_schema = parquet_files([table]), _targeting_schema(table, targeting)
    found: dict[int, KnownAd] = {}
    for file in files:
        try:
            schema = pq.read_schema(file)
            if "ad_id" not in schema.names:
                raise InputError(f"{file}: column 'ad_id' is missing; name an ads table")
            title, rules = _title_column(schema), _rule_columns(schema, targeting_schema)
            columns = ["ad_id", *([title] if title else []), *rules]
            rows = pq.read_table(file, columns=columns, filters=[("ad_id", "in", list(ad_ids))])
        except UNREADABLE as error:
            fault = f"not a readable ads table: {first_line(error)}"
            raise InputError(f"{file}: {fault}") from None
        for row in rows.to_pylist():
            named = str(row[title] or "") if title else ""
            found[row["ad_id"]] = KnownAd(named, explain_lists(targeting_schema, row, user))
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


def _rule_columns(table: "pa.Schema", schema: "TargetingSchema") -> list[str]:
    from grace.index.targeting.schema import EXCLUDE_SUFFIX

    columns = [column for name in schema.names for column in (name, name + EXCLUDE_SUFFIX)]
    return [column for column in columns if column in table.names]


def _targeting_schema(table: Path, targeting: Path | None) -> "TargetingSchema":
    from grace.index.targeting.schema import load_schema

    path = targeting or (table if table.is_dir() else table.parent) / SCHEMA_FILE
    if targeting is None and not path.is_file():
        raise InputError(
            f"--ads {table}: there is no {SCHEMA_FILE} next to it: give --targeting FILE, the "
            "schema that the snapshot was built with"
        )
    return load_schema(path)
