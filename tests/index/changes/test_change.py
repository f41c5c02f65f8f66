"""Rows that are put: read as a build reads them. test_live_ads.py has those that are refused."""

from typing import Any

import numpy as np
import pyarrow as pa

from grace.index.builder.batches import AdsReading
from grace.index.changes.applied import applied
from grace.index.changes.change import Changes, read_puts
from grace.index.forms.components import explain
from grace.index.rejects import Reject
from grace.index.targeting.schema import Attribute, Flight, Range, TargetingSchema, TargetSet
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")),),
    (TargetSet("place", 64, 2, 9),),
    7,
    ("campaign",),
    (Range("age"),),
    (Flight("flight"),),
)
TEXTS = pa.list_(pa.string())
TYPES = {
    "ad_id": pa.int64(),
    "sid": pa.list_(pa.int64()),
    "ad_weight": pa.float64(),
    "country": TEXTS,
    "country_exclude": TEXTS,
    "place": TEXTS,
    "place_all": pa.list_(TEXTS),
    "age_min": pa.float64(),
    "age_max": pa.float64(),
    "flight_start": pa.int64(),
    "rule": pa.string(),
    "campaign": pa.int64(),
}


def put(*rows: dict[str, Any], **types: pa.DataType) -> tuple[Changes, tuple[Reject, ...]]:
    names = dict.fromkeys(name for row in rows for name in row)
    arrays = {n: pa.array([row.get(n) for row in rows], {**TYPES, **types}[n]) for n in names}
    reading = AdsReading(SCHEMA, (3, 5))
    return read_puts(reading, pa.record_batch([*arrays.values()], [*arrays]), threads=1)


def kept(read: Changes) -> list[int]:
    return [] if read.puts is None else sorted(read.puts.columns.ad_ids.tolist())


def test_an_ad_that_is_put_twice_is_refused_with_all_copies() -> None:
    row = {"sid": [0, 0]}
    read, rejects = put(
        {"ad_id": 5, **row}, {"ad_id": 6, **row}, {"ad_id": 5, "country": ["SE"], **row}
    )
    assert kept(read) == [6]
    assert [(each.row, each.id, each.fault.column) for each in rejects] == [
        (0, 5, "ad_id"),
        (2, 5, "country"),
    ]


def test_a_column_that_is_not_there_has_no_rule_and_a_null_of_another_is_none() -> None:
    read, rejects = put({"ad_id": 5, "sid": [0, 0], "color": None}, color=pa.string())
    assert (kept(read), rejects, read.rule_columns) == ([5], (), ())
    none = pa.table({"ad_id": [1], "sid": [[0, 0]]}).to_batches()[0].slice(0, 0)
    assert read_puts(AdsReading(SCHEMA, (3, 5)), none, threads=1) == (Changes(), ())


def test_what_a_put_says_replaces_all_that_the_ad_said() -> None:
    rules = {"country": (frozenset({"NO"}), None), "place": (frozenset({"oslo"}), None)}
    base = plain_snapshot(SCHEMA, (3, 5), [RawAd(7, (2, 4), 1.0, rules, {"campaign": 3})])
    read, _ = put({"ad_id": 7, "sid": [0, 1], "rule": "country = US and age >= 18 or place = rome"})
    assert read.rule_columns == ("rule",)
    after = applied(base, read, 1)
    assert "rule" in after.facts.rule_columns
    assert (after.trie.walk((0, 1)), after.trie.num_leaves) == (2, 1)
    assert (after.ads.ad_ids.tolist(), after.ads.ad_weight.tolist()) == ([7], [0.0])
    assert (after.entities[0].of_ad.tolist(), len(after.entities[0])) == ([-1], 0)
    request = RetrieveRequest(at=0)
    request.user["country"].values.append("US")
    request.user["age"].number = 17
    reasons = explain(after, int(after.ads.ad_rule[0]), request)
    assert [(each.name, each.passes) for each in reasons] == [("country", True), ("age", False)]
    assert np.array_equal(after.rules.members(after.ads.ad_rule).offsets, [0, 2])
