"""The ads of a reply as the ads table has them: id, title, and why a user may see each."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from grace.index.forms.component import Reason
from grace.index.matching.explain import explain_lists
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.ids import DataIds
from grace.index.tables.roles import missing
from grace.index.tables.rows import Rows, read_rows
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.user_rows import UserAttributes

_BATCH_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class KnownAd:
    """An ad of the table, and its rules for the user. All pass if the snapshot has this table."""

    item_id: str | None  # the table's id; None without a data folder
    title: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class AdsTable:
    """The ads as `grace build` reads them: where they are, their rules, and their numbers."""

    source: TableSource
    schema: TargetingSchema
    ids: DataIds | None = None  # None: ids are integers

    def known(self, ad_ids: Sequence[int], user: UserAttributes) -> Mapping[int, KnownAd]:
        """Read the ads with these ids."""
        found: dict[int, KnownAd] = {}
        for file in self.source.tables():
            found.update(self._ads_in(file, ad_ids, user))
        return found

    def _ads_in(
        self, file: TableFile, ad_ids: Sequence[int], user: UserAttributes
    ) -> Iterator[tuple[int, KnownAd]]:
        key = self.source.theirs("ad_id")
        if key not in file.schema.names:
            raise missing(file, key)
        rules = self._rules_in(file)
        title = _title_column(file, self.source.theirs("title"), {key, *rules.values()})
        theirs = {"ad_id": key, **({"title": title} if title else {}), **rules}
        names = [*map(str, ad_ids)] if self.ids is None else self.ids.names("ad", ad_ids)
        ad_of = {name: ad for name, ad in zip(names, ad_ids, strict=True) if name is not None}
        for rows in read_rows(file, theirs, "ad_id", _BATCH_ROWS):
            keys = self._keys(rows)
            here = pc.is_in(keys, value_set=pa.array(list(ad_of), pa.string()))
            found = rows.where(here)
            lists = {ours: found.rules(ours).to_pylist() for ours in rules}
            titles = found.given("title").to_pylist() if title else [None] * len(found)
            for row, text in enumerate(keys.filter(here).to_pylist()):
                values = {ours: listed[row] for ours, listed in lists.items()}
                item_id = None if self.ids is None else text
                reasons = explain_lists(self.schema, values, user)
                yield ad_of[text], KnownAd(item_id, str(titles[row] or ""), reasons)

    def _keys(self, rows: Rows) -> pa.Array:
        """Return the ads' ids as texts."""
        is_mapped = self.ids is not None and "ad" in self.ids.mapped
        ids = rows.given("ad_id") if is_mapped else pa.array(rows.ids("ad_id", strict=False))
        return ids.cast(pa.string())

    def _rules_in(self, file: TableFile) -> dict[str, str]:
        """Return the columns of rules, ours and the table's."""
        theirs = {name: self.source.theirs(name) for name in self.schema.rule_columns}
        return {ours: their for ours, their in theirs.items() if their in file.schema.names}


def _title_column(file: TableFile, title: str, others: Set[str]) -> str | None:
    """Return the title's column, or else the first one of texts that is none of the others."""
    texts = [each.name for each in file.schema if is_text(each.type) and each.name not in others]
    return title if title in texts else next(iter(texts), None)
