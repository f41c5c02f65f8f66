"""Stream the ads table in batches of rows. Two threads read and decode the next ones."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import AnyArray, Float32, Int32, Int64, UInt16
from grace.configs.errors import InputError
from grace.index.builder.item_sids import ItemSids
from grace.index.builder.rule_columns import RuleColumns, RuleReader
from grace.index.builder.source import ENTITY_MAP, AdsSource
from grace.index.matching.ads import NO_ENTITY
from grace.index.tables.item_numbers import IdMap
from grace.index.tables.rows import UNKNOWN, Rows, read_rows
from grace.index.targeting.schema import TargetingSchema

BATCH_ROWS = 1 << 17

Item = TypeVar("Item")


class AdColumns(NamedTuple):
    ad_ids: Int64  # [ads]
    tokens: UInt16  # [ads, L]
    weights: Float32  # [ads]
    rule_of: Int32  # [ads]
    entity_ids: Int64  # [ads, entities], NO_ENTITY where the ad belongs to none

    @staticmethod
    def empty(ads: int, sid_length: int, entities: int) -> "AdColumns":
        return AdColumns(
            np.empty(ads, np.int64),
            np.empty((ads, sid_length), np.uint16),
            np.empty(ads, np.float32),
            np.empty(ads, np.int32),
            np.empty((ads, entities), np.int64),
        )

    def where(self, ads: npt.NDArray[np.bool_ | np.int32] | slice) -> "AdColumns":
        return AdColumns._make(column[ads] for column in self)

    def put(self, begin: int, ads: "AdColumns") -> int:
        """Put the ads at `begin`, and return where they end."""
        end, own = begin + len(ads.ad_ids), cast(Sequence[AnyArray], self)
        for column, values in zip(own, ads, strict=True):
            column[begin:end] = values
        return end


@dataclass(frozen=True, slots=True)
class AdsBatch:
    rows: Rows
    # of all rows, without their rules. Refused rows have arbitrary values. No id is negative
    columns: AdColumns
    rules: RuleColumns


@dataclass(frozen=True, slots=True)
class AdsReading:
    """The parts that turn the rows of an ads table into ads."""

    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    names: Mapping[str, IdMap] = field(default_factory=dict)  # id maps by column
    sids: ItemSids | None = None  # None: the table has a column sid
    no_sid: str = ""  # the reason to refuse an ad without a SID
    batch_rows: int = BATCH_ROWS


class BatchReader:
    """Iterating yields AdsBatch in file order."""

    def __init__(self, source: AdsSource, reading: AdsReading) -> None:
        self._source = source
        self._reading = reading
        self._vocab_sizes = np.array(reading.vocab_sizes, np.int64)
        self.rules = RuleReader(reading.schema)

    def __iter__(self) -> Iterator[AdsBatch]:
        """A thread reads ahead, and another one decodes ahead. Their failures are raised here."""
        return _ahead(map(self._decode, _ahead(self._rows())))

    def _rows(self) -> Iterator[Rows]:
        for file in self._source.files:
            read = 0
            for rows in read_rows(file.table, file.theirs, "ad_id", self._reading.batch_rows):
                read += len(rows)
                if read > file.rows:
                    raise InputError(f"{file.address}: grew while it was read")
                yield rows
            if read != file.rows:
                raise InputError(
                    f"{file.address}: {read} rows read, it had {file.rows} before: leave it as it "
                    "is during the build"
                )

    def _decode(self, rows: Rows) -> AdsBatch:
        reading, entities = self._reading, self._reading.schema.entities
        columns = AdColumns.empty(len(rows), len(self._vocab_sizes), len(entities))
        remedy = "; id_map in tables.yaml numbers such ads"
        columns.ad_ids[:] = self._ids(rows, "ad_id", "is null", remedy)
        if reading.sids is None:
            columns.tokens[:] = rows.sids("sid", len(self._vocab_sizes), self._vocab_sizes)
        else:
            self._join_tokens(rows, columns, reading.sids)
        columns.weights[:] = rows.weights("ad_weight")
        columns.entity_ids[:] = NO_ENTITY
        for number, name in enumerate(entities):
            if name in rows.theirs:
                columns.entity_ids[:, number] = self._ids(rows, name, None, f"; {ENTITY_MAP}")
        return AdsBatch(rows, columns, self.rules.read(rows))

    def _join_tokens(self, rows: Rows, columns: AdColumns, sids: ItemSids) -> None:
        places = sids.places(columns.ad_ids)
        for row in np.flatnonzero((places < 0) & ~rows.refused()).tolist():
            rows.refuse(row, "sid", rows.shown("ad_id", row), self._reading.no_sid)
        if len(sids.tokens):
            columns.tokens[:] = sids.tokens[np.maximum(places, 0)]

    def _ids(self, rows: Rows, name: str, null: str | None, remedy: str) -> Int64:
        ids = rows.ids(name, self._reading.names.get(name), null=null, remedy=remedy)
        unknown = (ids == UNKNOWN) & ~rows.refused()
        for row in np.flatnonzero(unknown)[:1].tolist():
            shown = f"{rows.file.address}: {name} {rows.shown(name, row)}"
            raise InputError(f"{shown} was added while it was read")
        return ids


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items. While the caller uses one, another thread makes the next."""
    with ThreadPoolExecutor(1, thread_name_prefix="grace-read-ads") as ahead:
        future = ahead.submit(next, items, None)
        while (item := future.result()) is not None:
            future = ahead.submit(next, items, None)
            yield item
