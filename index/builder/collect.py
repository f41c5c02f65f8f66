"""Run the rows of an ads table through the rule table, and keep what a snapshot needs of each ad.

That is 24 bytes at L = 4, and 8 more for each entity of the schema.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.batches import AdsBatch, AdsReading, BatchReader
from grace.index.builder.rule_table import FAULTS, REFUSED, RuleTable
from grace.index.builder.sorting import order_by_id
from grace.index.builder.source import AdsSource
from grace.index.forms.component import BAD_VALUE, Codes
from grace.index.progress import Advance
from grace.index.rejects import Fault, Reject
from grace.index.targeting.rules import TargetingRules, gather_spans


@dataclass(frozen=True, slots=True)
class CollectedAds:
    """The ads that are built, in input order, with rules and values numbered by arrival.

    ad_ids int64 [ads], tokens uint16 [ads, L], weights float32 [ads], rule_of int32 [ads],
    entity_ids int64 [ads] of each entity, NO_ENTITY where the ad belongs to none
    """

    ad_ids: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]
    rule_of: npt.NDArray[np.int32]
    entity_ids: tuple[npt.NDArray[np.int64], ...]
    rules: TargetingRules
    set_values: tuple[Sequence[str], ...]  # of each set, by value id

    def __len__(self) -> int:
        return len(self.ad_ids)

    def only(self, kept: npt.NDArray[np.bool_]) -> "CollectedAds":
        """Return the ads where `kept`, with the rules of all."""
        if kept.all():
            return self
        return CollectedAds(
            self.ad_ids[kept],
            self.tokens[kept],
            self.weights[kept],
            self.rule_of[kept],
            tuple(ids[kept] for ids in self.entity_ids),
            self.rules,
            self.set_values,
        )

    def without(self, ad_ids: npt.NDArray[np.int64]) -> "CollectedAds":
        """Leave out the ads of these ids, which ascend."""
        if len(ad_ids) == 0:
            return self
        at = np.minimum(np.searchsorted(ad_ids, self.ad_ids), len(ad_ids) - 1)
        return self.only(ad_ids[at] != self.ad_ids)


@dataclass(frozen=True, slots=True)
class SortedIds:
    """The ids of rows in ascending order, also of refused ones: no copy of a repeated id is built.

    ids int64 [n], rows int32 [n] of the whole table, refused bool [n]
    """

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    refused: npt.NDArray[np.bool_]


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
    rejects: list[Sequence[Reject]] = field(default_factory=list)  # batch by batch
    stated: frozenset[str] = frozenset()  # columns in which some row has a rule, or an entity

    def __iter__(self) -> Iterator[tuple[CollectedAds, SortedIds]]:
        reader = BatchReader(self.source, self.reading)
        batches = iter(reader)
        batch = next(batches, None)
        while batch is not None and not self._too_many:
            first_row = self.first_row + self.rows
            columns = self._columns(max(self.run_rows, len(batch.ad_ids)))
            size = 0
            with closing(RuleTable(self.reading.schema, self.threads)) as table:
                while (
                    batch is not None
                    and size + len(batch.ad_ids) <= len(columns[0])
                    and not self._too_many
                ):
                    size = self._add(batch, reader, table, columns, size)
                    batch = next(batches, None)
                rules = table.take()
            # Decoding is a batch ahead and may add values meanwhile: those of this run are there.
            values = reader.values()
            ad_ids, tokens, weights, rule_of, *entity_ids = (column[:size] for column in columns)
            ads = CollectedAds(ad_ids, tokens, weights, rule_of, tuple(entity_ids), rules, values)
            refused = rule_of == REFUSED
            self.stated = frozenset(reader.stated)
            yield ads.only(~refused), self._sorted_ids(ad_ids, refused, first_row)

    @property
    def _too_many(self) -> bool:
        return sum(map(len, self.rejects)) > self.most_rejects

    def _columns(self, most: int) -> tuple[npt.NDArray[Any], ...]:
        rows = min(most, self.source.rows - self.rows)
        return (
            np.empty(rows, np.int64),
            np.empty((rows, len(self.reading.vocab_sizes)), np.uint16),
            np.empty(rows, np.float32),
            np.empty(rows, np.int32),
            *(np.empty(rows, np.int64) for _ in self.reading.schema.entities),
        )

    def _add(
        self,
        batch: AdsBatch,
        reader: BatchReader,
        table: RuleTable,
        columns: Sequence[npt.NDArray[Any]],
        begin: int,
    ) -> int:
        end = begin + len(batch.ad_ids)
        rule_of = np.where(batch.refused, np.int32(REFUSED), np.int32(0))
        faults = table.add(batch.rules, rule_of)
        found = (batch.ad_ids, batch.tokens, batch.weights, rule_of, *batch.entity_ids)
        for column, values in zip(columns, found, strict=True):
            column[begin:end] = values
        self.rejects += [batch.rejects, _rule_rejects(batch, reader.code_of, faults)]
        self.rows += len(rule_of)
        self.advance(self.rows)
        return end

    def _sorted_ids(
        self, ad_ids: npt.NDArray[np.int64], refused: npt.NDArray[np.bool_], first_row: int
    ) -> SortedIds:
        known = np.flatnonzero(ad_ids >= 0)
        order = known[order_by_id(ad_ids[known], self.threads)]
        rows = (order + first_row).astype(np.int32)
        return SortedIds(ad_ids[order], rows, refused[order])


@dataclass(frozen=True, slots=True)
class RepeatedIds:
    """The ads that only their repeated id refuses.   ad_ids int64 [ads], rows int32 [ads]"""

    ad_ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]


def find_repeated(parts: Sequence[SortedIds]) -> RepeatedIds:
    """Keeping one copy would depend on the input's order."""
    in_order = parts[0].ids
    if len(parts) > 1:
        in_order = np.sort(np.concatenate([part.ids for part in parts]))
    again = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    found = []
    for part in parts:
        begins, ends = (np.searchsorted(part.ids, again, side) for side in ("left", "right"))
        ids, rows, refused = (
            gather_spans(array, begins, ends - begins)[1]
            for array in (part.ids, part.rows, part.refused)
        )
        found.append((ids[~refused], rows[~refused]))
    ad_ids, rows = map(np.concatenate, zip(*found, strict=True))
    return RepeatedIds(ad_ids, rows)


def _rule_rejects(
    batch: AdsBatch, code_of: Mapping[str, Codes], faults: npt.NDArray[np.int32]
) -> list[Reject]:
    rejects, codes_of_columns = [], list(code_of.items())
    for row in np.flatnonzero(faults[:, 0]).tolist():
        fault, at = faults[row].tolist()
        (column, codes), value, reason = codes_of_columns[at], None, FAULTS[fault]
        if fault == 1:
            value, reason = _bad_value(batch.rows.rule_values(column, row), codes)
        rejects.append(batch.rows.reject(row, Fault(column, value, reason)))
    return rejects


def _bad_value(values: Sequence[str | None], codes: Codes) -> tuple[str | None, str]:
    for value in values:
        if value is None:
            return None, "holds an empty value, a null, or one that is not UTF-8"
        if codes(value) == BAD_VALUE:
            return value, codes.refusal
    raise AssertionError("native code refused a good value")
