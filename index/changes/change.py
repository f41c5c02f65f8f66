"""Changes of ads, and how rows become put ads: as a build reads them, with the same refusals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from grace.configs.arrays import Int64
from grace.index.builder.batches import AdsReading
from grace.index.builder.collect import CollectedAds, Collector, find_repeated
from grace.index.builder.rule_columns import columns_stated
from grace.index.builder.source import (
    OTHER_COLUMNS,
    AdsFile,
    AdsSource,
    ExpectedColumns,
    TableColumns,
)
from grace.index.rejects import Fault, Reject, brief
from grace.index.tables.addresses import Format
from grace.index.tables.data_folder import TableSource
from grace.index.tables.table_file import TableFile

_ADDRESS = "puts"
_REPEATED = "is repeated; no copy of it is taken"
_UNKNOWN = "is no column that the targeting schema declares; declare it, or leave it out"


@dataclass(frozen=True, slots=True)
class Changes:
    """Ads that are put, new or instead of others with their ids, and ids of ads that are removed.

    No id occurs twice. The snapshot may lack removed ones.
    """

    puts: CollectedAds | None = None
    removed: Sequence[int] | Int64 = ()
    rule_columns: tuple[str, ...] = ()  # those in which some put ad has a rule, as in SnapshotFacts


@dataclass(frozen=True, slots=True)
class _Batch(TableFile):
    """A table in memory."""

    content: pa.RecordBatch = field(kw_only=True)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(self.content), rows):
            yield self.content.select(columns).slice(first, rows)


def read_puts(
    reading: AdsReading, batch: pa.RecordBatch, threads: int
) -> tuple[Changes, tuple[Reject, ...]]:
    """Read rows of an ads table with our column names. A column that is not there has no rule.

    Return the puts, and the rejects by row. Raise InputError for a column of the wrong type. A
    fault of a row refuses only its ad. So does a value in a column that the schema does not know.
    """
    schema = reading.schema
    expected = ExpectedColumns(schema)
    known = [name for name in batch.schema.names if name in expected.known]
    named = (*schema.names, *schema.entities)
    columns = schema.columns
    absent = tuple(name for name in named if not {*columns.get(name, (name,))} & {*known})
    rows = batch.select(known)
    table = _Batch(_ADDRESS, Format.PARQUET, rows.schema, len(rows), content=rows)
    source, expected = TableSource((_ADDRESS,)), replace(expected, without=absent)
    checked = TableColumns(table, frozenset(), frozenset(known), source, expected).checked()
    ads_source = AdsSource((AdsFile(table, len(rows), checked),))
    collector = Collector(ads_source, reading, threads, len(rows), len(rows))
    collected = next(iter(collector), None)
    if collected is None:
        return Changes(), ()
    ads, ids = collected
    rejects = {reject.row: reject for reject in collector.rejects}
    faults: list[tuple[int, str, str | None, str]] = [
        (row, "ad_id", None, _REPEATED) for row in find_repeated([ids])[1].tolist()
    ]
    for name in batch.schema.names:
        if name not in known and name not in OTHER_COLUMNS:
            column = batch.column(name)
            given = np.flatnonzero(column.is_valid()).tolist()
            faults += [(row, name, brief(str(column[row])), _UNKNOWN) for row in given]
    for row, column, value, reason in faults:
        ad = rows.column("ad_id")[row].as_py()
        rejects.setdefault(row, Reject(_ADDRESS, row, ad, Fault(column, value, reason)))
    ads = ads.without(ids.ids[np.isin(ids.rows, [*rejects])])
    stated = columns_stated(schema, collector.stated)
    return Changes(ads, (), stated), tuple(rejects[row] for row in sorted(rejects))
