"""Run the rows of an ads table through the rule table, and keep what a snapshot needs of each ad.

That is 24 bytes at L = 4, and 8 more for each entity of the schema.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from grace.configs.arrays import Bools, Int32, Int64
from grace.index.builder.batches import AdColumns, AdsBatch, AdsReading, BatchReader
from grace.index.builder.rule_table import FAULTS, REFUSED, RuleTable
from grace.index.builder.sorting import order_by_id
from grace.index.builder.source import AdsSource
from grace.index.forms.component import BAD_VALUE, Codes
from grace.index.matching.ads import NO_ENTITY
from grace.index.progress import Advance
from grace.index.rejects import Reject
from grace.index.targeting.rules import TargetingRules, span_places


@dataclass(frozen=True, slots=True)
class CollectedAds:
    """The ads that are built, in input order, with rules and values numbered by arrival."""

    columns: AdColumns
    rules: TargetingRules
    set_values: tuple[Sequence[str], ...]  # of each set, by value id

    def __len__(self) -> int:
        return len(self.columns.ad_ids)

    def where(self, kept: Bools) -> "CollectedAds":
        """Return the ads where `kept`, with the rules of all."""
        return self if kept.all() else replace(self, columns=self.columns.where(kept))

    def without(self, ad_ids: Int64) -> "CollectedAds":
        return self.where(~np.isin(self.columns.ad_ids, ad_ids))


@dataclass(frozen=True, slots=True)
class SortedIds:
    """The ids of all rows, ascending. Refused rows count: no copy of a repeated id is built."""

    ids: Int64  # [n]
    rows: Int32  # [n] of the whole table
    refused: Bools  # [n]


@dataclass(slots=True)
class Collector:
    """Iterating yields the ads of runs of about `run_rows` rows, by their own rules, and their ids.

    It ends early after more rejects than `most_rejects`.
    """

    source: AdsSource
    reading: AdsReading
    threads: int
    most_rejects: int
    run_rows: int
    first_row: int = 0  # of the whole table
    advance: Advance = lambda _: None
    rows: int = 0
    rejects: list[Reject] = field(default_factory=list)
    stated: set[str] = field(default_factory=set)  # columns in which some row has a rule or entity

    def __iter__(self) -> Iterator[tuple[CollectedAds, SortedIds]]:
        reader = BatchReader(self.source, self.reading)
        batches, schema = iter(reader), self.reading.schema
        batch = next(batches, None)
        while batch is not None and not self._too_many:
            first_row, size = self.first_row + self.rows, 0
            most = min(max(self.run_rows, len(batch.rows)), self.source.rows - self.rows)
            columns = AdColumns.empty(most, len(self.reading.vocab_sizes), len(schema.entities))
            with closing(RuleTable(schema, self.threads)) as table:
                while batch is not None and size + len(batch.rows) <= most and not self._too_many:
                    self._add(batch, reader, table)
                    size = columns.put(size, batch.columns)
                    batch = next(batches, None)
                rules, columns.rule_of[:size] = table.take(columns.rule_of[:size])
            # Decoding is a batch ahead and may add values meanwhile: those of this run are there.
            ads = CollectedAds(columns.where(slice(size)), rules, reader.rules.values())
            refused = ads.columns.rule_of == REFUSED
            ad_ids = ads.columns.ad_ids
            known = np.flatnonzero(ad_ids >= 0)
            order = known[order_by_id(ad_ids[known], self.threads)]
            rows = (order + first_row).astype(np.int32)
            yield ads.where(~refused), SortedIds(ad_ids[order], rows, refused[order])

    @property
    def _too_many(self) -> bool:
        return len(self.rejects) > self.most_rejects

    def _add(self, batch: AdsBatch, reader: BatchReader, table: RuleTable) -> None:
        """Give the rows their rules, and note those that are refused."""
        rows, rules, schema = batch.rows, batch.rules, self.reading.schema
        refused = np.where(rows.refused(), np.int32(REFUSED), np.int32(0))
        batch.columns.rule_of[:], faults = table.add(rules, refused)
        for row in np.flatnonzero(faults[:, 0]).tolist():
            fault, at = faults[row].tolist()
            column, codes = [*reader.rules.codes_of_column.items()][at]
            ad, shown, source, place = rules.source(rows, row, column)
            value, reason = None, FAULTS[fault]
            if fault == 4:  # an empty range
                ends = schema.columns[schema.name_of[column]]
                value = "..".join(source.shown(end, place) or "" for end in ends)
            if fault == 1 and codes is not None:
                value, reason = _bad_value(source.rule_values(column, place), codes)
            rows.refuse(ad, shown, value, reason)
        self.rejects += rows.rejects()
        of_entities = zip(schema.entities, batch.columns.entity_ids.T, strict=True)
        self.stated |= rules.stated | {x for x, ids in of_entities if (ids != NO_ENTITY).any()}
        self.rows += len(rows)
        self.advance(self.rows)


def _bad_value(values: Sequence[str | None], codes: Codes) -> tuple[str | None, str]:
    for value in values:
        if value is None:
            return None, "holds an empty value, a null, or one that is not UTF-8"
        if codes[value] == BAD_VALUE:
            return value, codes.refusal
    raise AssertionError("native code refused a good value")


def find_repeated(parts: Sequence[SortedIds]) -> tuple[Int64, Int32]:
    """Return the ids and rows of ads that only their repeated id refuses.

    Keeping one copy would depend on the input's order.
    """
    in_order = parts[0].ids
    if len(parts) > 1:
        in_order = np.sort(np.concatenate([part.ids for part in parts]))
    again = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    found = []
    for part in parts:
        begins, ends = (np.searchsorted(part.ids, again, side) for side in ("left", "right"))
        _, places = span_places(begins, ends - begins)
        good = places[~part.refused[places]]
        found.append((part.ids[good], part.rows[good]))
    ids, rows = map(np.concatenate, zip(*found, strict=True))
    return ids, rows
