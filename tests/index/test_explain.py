"""Explanations agree with eligibility, and say what a person would."""

import numpy as np
import pytest
from hypothesis import given

from grace.index.matching.explain import Reason, explain, explain_lists
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
            assert explain_lists(case.schema, columns(ad), user) == reasons


def columns(ad: RawAd) -> dict[str, list[str] | None]:
    """The lists of the ad's row in an ads table."""
    return {
        f"{name}{suffix}": None if side is None else list(side)
        for name, rule in ad.rules.items()
        for suffix, side in zip(("", "_exclude"), rule, strict=True)
    }


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
            (Reason("country", False, "only NO", ("SE",), ("SE",)),),
        ),
        (
            {"country": (None, frozenset({"SE"}))},
            {},
            (Reason("country", False, "none of SE, nor an unknown or missing one", (), ()),),
        ),
        (
            {"location": (frozenset({"no/oslo"}), frozenset({"no/bergen"}))},
            {"location": ["no", "no/oslo"]},
            (
                Reason(
                    "location",
                    True,
                    "any of no/oslo, none of no/bergen",
                    ("no", "no/oslo"),
                    ("no/oslo",),
                ),
            ),
        ),
        (
            {"country": (frozenset({"NO", "SE"}), frozenset({"SE"}))},
            {"country": ["NO", "SE"]},
            (Reason("country", False, "only NO", ("NO", "SE"), ("SE",)),),
        ),
        (
            {"age": (frozenset({"18-24", "25-34"}), None)},
            {},
            (Reason("age", False, "only listed values", (), ()),),
        ),
    ],
    ids=[
        "no rule",
        "include",
        "exclude and missing",
        "set with both",
        "several values",
        "all values",
    ],
)
def test_reasons_read_well(
    rules: dict[str, tuple[frozenset[str] | None, frozenset[str] | None]],
    user: dict[str, list[str]],
    expected: tuple[Reason, ...],
) -> None:
    snapshot = plain_snapshot(SCHEMA, (2,), [RawAd(1, (0,), 0.0, rules)])
    assert explain(snapshot, 0, user) == expected


@pytest.mark.parametrize(
    ("excluded", "words"),
    [
        ("unknown", "only male (user: no value, which counts as unknown)"),
        ("male", "only unknown (user: no value, which counts as unknown)"),
    ],
)
def test_a_stand_in_for_a_missing_value_is_not_shown_as_the_users(
    excluded: str, words: str
) -> None:
    schema = TargetingSchema((Attribute("gender", ("male", "unknown"), "unknown"),), (), 7)
    ad = RawAd(1, (0,), 0.0, {"gender": (None, frozenset({excluded}))})
    (reason,) = explain(plain_snapshot(schema, (2,), [ad]), 0, {"gender": []})
    assert str(reason) == f"gender: {words}"
    assert (reason.user, reason.deciding) == ((), ("unknown",))


def test_long_lists_are_cut_with_their_number() -> None:
    places = frozenset(f"p{i}" for i in range(9))
    ad = RawAd(1, (0,), 0.0, {"location": (places, None)})
    snapshot = plain_snapshot(SCHEMA, (2,), [ad])
    (reason,) = explain(snapshot, int(np.int64(0)), {})
    assert reason.rule == "any of p0, p1, p2, p3, p4 and 4 more"
