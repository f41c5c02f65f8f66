"""Explanations agree with eligibility, and say what a person would."""

import numpy as np
import pytest
from hypothesis import given

from grace.index.matching.explain import Reason, explain
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.oracle import RawAd, eligible
from support.plain_builder import plain_snapshot
from support.strategies import Case, cases, examples


@examples(20)
@given(cases())
def test_all_reasons_pass_exactly_when_the_ad_is_eligible(case: Case) -> None:
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    ordinals = snapshot.ads.ordinals([ad.ad_id for ad in case.ads]).tolist()
    for user in case.users:
        for ad, ordinal in zip(case.ads, ordinals, strict=True):
            reasons = explain(snapshot, ordinal, user)
            assert all(r.passes for r in reasons) == eligible(case.schema, ad, user)


SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO", "GB", "SE")), Attribute("age", ("18-24", "25-34"))),
    (TargetSet("location", 256, 4, 64),),
    7,
)


@pytest.mark.parametrize(
    ("rules", "user", "expected"),
    [
        ({}, {}, ()),
        (
            {"country": (frozenset({"NO"}), None)},
            {"country": ["SE"]},
            (Reason("country", False, "NO", ("SE",)),),
        ),
        (
            {"country": (None, frozenset({"SE"}))},
            {},
            (Reason("country", False, "not SE, nor an unknown or missing one", ()),),
        ),
        (
            {"location": (frozenset({"no/oslo"}), frozenset({"no/bergen"}))},
            {"location": ["no", "no/oslo"]},
            (Reason("location", True, "one of no/oslo, none of no/bergen", ("no/oslo",)),),
        ),
    ],
    ids=["no rule", "include", "exclude and missing", "set with both"],
)
def test_reasons_read_well(
    rules: dict[str, tuple[frozenset[str] | None, frozenset[str] | None]],
    user: dict[str, list[str]],
    expected: tuple[Reason, ...],
) -> None:
    snapshot = plain_snapshot(SCHEMA, (2,), [RawAd(1, (0,), 0.0, rules)])
    assert explain(snapshot, 0, user) == expected


def test_long_lists_are_cut_with_their_number() -> None:
    places = frozenset(f"p{i}" for i in range(9))
    ad = RawAd(1, (0,), 0.0, {"location": (places, None)})
    snapshot = plain_snapshot(SCHEMA, (2,), [ad])
    (reason,) = explain(snapshot, int(np.int64(0)), {})
    assert reason.rule == "one of p0, p1, p2, p3, p4 and 4 more"
