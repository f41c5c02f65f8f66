"""Run all ads through the rule table and keep what the indexes need: 24 bytes each at L = 4.

Each entity of the schema adds 8 bytes.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.builder.batches import AdsBatch, AdsReading, BatchReader
from grace.index.builder.rule_table import FAULTS, REFUSED, RuleTable
from grace.index.builder.sorting import order_by_id
from grace.index.builder.source import AdsSource
from grace.index.progress import Advance
from grace.index.rejects import Fault, Reject, RejectLog
from grace.index.tables.item_numbers import IdMap
from grace.index.targeting.rules import TargetingRules
from grace.index.targeting.schema import RESERVED_VALUE, TargetingSchema


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


def collect_ads(
    source: AdsSource,
    reading: AdsReading,
    reader: BatchReader,
    log: RejectLog,
    threads: int,
    advance: Advance,
) -> CollectedAds:
    schema = reading.schema
    rows = source.rows
    ad_ids = np.empty(rows, np.int64)
    weights = np.empty(rows, np.float32)
    rule_of = np.empty(rows, np.int32)
    entity_ids = tuple(np.empty(rows, np.int64) for _ in schema.entities)
    tokens: npt.NDArray[np.uint16] | None = None
    at = 0
    with closing(RuleTable(schema, threads)) as table:
        for batch in reader:
            if tokens is None:
                tokens = np.empty((rows, batch.tokens.shape[1]), np.uint16)
            end = at + len(batch.ad_ids)
            ad_ids[at:end], tokens[at:end] = batch.ad_ids, batch.tokens
            weights[at:end] = batch.weights
            for ids, of_batch in zip(entity_ids, batch.entity_ids, strict=True):
                ids[at:end] = of_batch
            rule_of[at:end] = np.where(batch.refused, REFUSED, 0)
            faults = table.add(batch.rules, rule_of[at:end])
            log.extend(batch.rejects)
            log.extend(rule_rejects(batch, schema, faults))
            at = end
            advance(at)
        rules = table.take()
    assert tokens is not None, "open_ads refuses a table without rows"
    _refuse_repeated(source, ad_ids, rule_of, log, threads, reading.names.get("ad_id"))
    if len(log):
        keep = rule_of != REFUSED
        ad_ids, tokens, weights = ad_ids[keep], tokens[keep], weights[keep]
        rule_of = rule_of[keep]
        entity_ids = tuple(ids[keep] for ids in entity_ids)
    set_values = tuple(codes.strings() for codes in reader.set_codes)
    return CollectedAds(ad_ids, tokens, weights, rule_of, entity_ids, rules, set_values)


def rule_rejects(
    batch: AdsBatch, schema: TargetingSchema, faults: npt.NDArray[np.int32]
) -> list[Reject]:
    columns = schema.rule_columns
    listed = {a.name: frozenset(a.values) for a in schema.attributes}
    rejects = []
    for row in np.flatnonzero(faults[:, 0]).tolist():
        reason, column = FAULTS[int(faults[row, 0])], columns[int(faults[row, 1])]
        value = None
        if faults[row, 0] == 1:
            name = columns[int(faults[row, 1]) // 2 * 2]
            value, reason = _bad_value(batch.rows.rule_values(column, row), listed.get(name))
        rejects.append(batch.rows.reject(row, Fault(column, value, reason)))
    return rejects


def _bad_value(
    values: Sequence[str | None], listed: frozenset[str] | None
) -> tuple[str | None, str]:
    for value in values:
        if value is None:
            return None, "holds an empty value, a null, or one that is not UTF-8"
        if listed is not None and value not in listed:
            return value, "is not among the values that the schema lists"
        if listed is None and value == RESERVED_VALUE:
            return value, "is reserved for ads without an include list"
    raise AssertionError("native code refused a good value")


def _refuse_repeated(
    source: AdsSource,
    ad_ids: npt.NDArray[np.int64],
    rule_of: npt.NDArray[np.int32],
    log: RejectLog,
    threads: int,
    names: IdMap | None,
) -> None:
    """Every copy of a repeated id is refused: keeping one would depend on the input's order."""
    known = np.flatnonzero(ad_ids >= 0)
    order = known[order_by_id(ad_ids[known], threads)]
    in_order = ad_ids[order]
    same = in_order[1:] == in_order[:-1]
    if not same.any():
        return
    rows = np.sort(order[np.append(same, False) | np.append(False, same)])
    rows = rows[rule_of[rows] != REFUSED]
    rule_of[rows] = REFUSED
    first_rows = np.cumsum([0, *(file.rows for file in source.files)])
    files = np.searchsorted(first_rows, rows, side="right") - 1
    given = ad_ids[rows].tolist() if names is None else names.names(ad_ids[rows])
    rejected = zip(files.tolist(), (rows - first_rows[files]).tolist(), given, strict=True)
    log.extend([repeated_reject(source.files[f].address, row, ad) for f, row, ad in rejected])


def repeated_reject(file: str, row: int, given: int | str) -> Reject:
    fault = Fault("ad_id", str(given), "is repeated; no copy of it is built")
    return Reject(file, row, given, fault)
