"""The ads of a reply as a data folder has them: id, title, and why a user may see each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.index.builder.arrange import only_used
from grace.index.builder.rule_columns import RuleReader
from grace.index.builder.rule_table import REFUSED, RuleTable
from grace.index.forms.component import Reason
from grace.index.forms.components import RuledRows, explain, unknown_values
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import read_data_folder
from grace.index.tables.ids import DataIds
from grace.index.tables.roles import missing
from grace.index.tables.rows import Rows, read_rows
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import CLAUSES, EXPRESSION, TargetingSchema, load_schema
from grace.proto.retrieval_pb2 import RetrieveRequest

_BATCH_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad, and its rules for the user. All pass if the server has the ad as the tables do."""

    item_id: str | None  # the tables' id; None if the id map does not have the ad
    title: str = ""
    reasons: tuple[Reason, ...] = ()
    listed: bool = False  # whether a table has the ad in a row without a fault


class AdsTable:
    """The ads of a data folder as `grace build` reads them, and their numbers.

    A row of a table in `changed` replaces the folder's row of the same ad. A faulty row replaces
    nothing.
    """

    def __init__(self, folder: Path, changed: Sequence[str] = ()) -> None:
        data = read_data_folder(folder)
        self.ids = DataIds(folder)
        self._source = replace(data.ads, files=(*data.ads.files, *changed))
        self._schema = load_schema(data.targeting)

    def known(self, ad_ids: Sequence[int], request: RetrieveRequest) -> Mapping[int, KnownAd]:
        """Return what is known of each of these ads. The request must have `at`."""
        names = self.ids.names("ad", ad_ids)
        found = {ad_id: KnownAd(name) for ad_id, name in zip(ad_ids, names, strict=True)}
        ad_of = {each.item_id: ad_id for ad_id, each in found.items() if each.item_id is not None}
        for file in self._source.tables():
            found.update(self._ads_in(file, ad_of, request))
        return found

    def unlisted(self, request: RetrieveRequest) -> list[str]:
        """Return the values that the schema does not list, such as country=XX."""
        listed = {each.name: each.values for each in self._schema.attributes}
        return [
            f"{name}={value}"
            for name, of_user in request.user.items()
            for value in of_user.values
            if value not in listed.get(name, of_user.values)
        ]

    def unused(self, request: RetrieveRequest) -> list[str]:
        """Return the filter values that no ad has, such as category=foood. This reads all ads."""
        given = ((name, (*each.any_of, *each.none_of)) for name, each in request.filters.items())
        left = {f"{name}={value}" for name, values in given for value in values}
        for file in self._source.tables() if left else ():
            ours = ("ad_id", *(each.name for each in self._schema.properties))
            columns = {name: self._source.theirs(name) for name in ours}
            theirs = {name: their for name, their in columns.items() if their in file.schema.names}
            for rows in read_rows(file, theirs, "ad_id", _BATCH_ROWS):
                left &= {*unknown_values(_ruled(rows, self._schema), request)}
        return sorted(left)

    def _ads_in(
        self, file: TableFile, ad_of: Mapping[str, int], request: RetrieveRequest
    ) -> Iterator[tuple[int, KnownAd]]:
        key = self._source.theirs("ad_id")
        if key not in file.schema.names:
            raise missing(file, key)
        ours = (*self._schema.rule_columns, CLAUSES, EXPRESSION)
        columns = {name: self._source.theirs(name) for name in ours}
        rules = {name: their for name, their in columns.items() if their in file.schema.names}
        others, title = {key, *rules.values()}, self._source.theirs("title")
        texts = [x.name for x in file.schema if is_text(x.type) and x.name not in others]
        title = title if title in texts else next(iter(texts), "")  # or the first column of texts
        theirs = {"ad_id": key, **({"title": title} if title else {}), **rules}
        mapped = "ad" in self.ids.mapped
        for rows in read_rows(file, theirs, "ad_id", _BATCH_ROWS):
            ids = rows.given("ad_id") if mapped else pa.array(rows.ids("ad_id", strict=False))
            keys = ids.cast(pa.string())
            here = pc.is_in(keys, value_set=pa.array(list(ad_of), pa.string()))
            found = rows.where(here)
            if len(found) == 0:
                continue
            ruled = _ruled(found, self._schema)
            titles = found.given("title").to_pylist() if title else [None] * len(found)
            for row, item_id in enumerate(keys.filter(here).to_pylist()):
                rule = int(ruled.rule_of[row])
                if rule != REFUSED:
                    reasons = explain(ruled, rule, request)
                    yield ad_of[item_id], KnownAd(item_id, str(titles[row] or ""), reasons, True)


def _ruled(rows: Rows, schema: TargetingSchema) -> RuledRows:
    reader = RuleReader(schema)
    columns = reader.read(rows)
    refused = np.where(rows.refused(), REFUSED, 0).astype(np.int32)
    with closing(RuleTable(schema, 1)) as table:
        rule_of, _ = table.add(columns, refused)
        rules, rule_of = table.take(rule_of)
    kept = rule_of != REFUSED
    rule_of[kept], rules, set_values = only_used(rules, reader.values(), rule_of[kept])
    return RuledRows(schema, rules, set_values, rule_of)
