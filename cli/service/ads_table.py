"""Find the ads table that a reply's ads are shown from, and print an ad with its reasons."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grace.cli.options import data_ids
from grace.configs.errors import InputError

if TYPE_CHECKING:
    from grace.index.forms.component import Reason
    from grace.index.matching.ads_table import AdsTable


def shown_table(ads: str | None, targeting: Path | None, data: Path | None) -> "AdsTable | None":
    """Return the table of --ads or of --data; None without both.

    Without the file of the targeting schema, it is `targeting.yaml` next to the table.
    """
    from grace.index.matching.ads_table import AdsTable
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
