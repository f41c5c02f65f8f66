"""Explanations agree with eligibility, and say what a person would."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from grace.index.forms.component import Reason
from grace.index.forms.components import explain, explain_lists
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.oracle import RawAd, Rule, eligible
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


def test_reasons_name_the_values_that_decide() -> None:
    rules: dict[str, Rule] = {
        "country": (frozenset({"NO", "SE"}), frozenset({"SE"})),
        "location": (frozenset({"no/oslo"}), frozenset({"no/bergen"})),
    }
    snapshot = plain_snapshot(SCHEMA, (2,), [RawAd(1, (0,)), RawAd(2, (0,), 0.0, rules)])
    user = {"country": ["NO", "SE"], "location": ["no", "no/oslo"]}
    asked, words = ("no", "no/oslo"), "any of no/oslo, none of no/bergen"
    assert explain(snapshot, 0, user) == ()
    assert explain(snapshot, 1, user) == (
        Reason("country", False, "only NO", ("NO", "SE"), ("SE",)),
        Reason("location", True, words, asked, ("no/oslo",)),
    )
    assert [reason.passes for reason in explain(snapshot, 1, {})] == [False, False]


LETTERS = tuple("abcdefghijklm")


@pytest.mark.parametrize(
    ("include", "exclude", "words", "words_if_missing_passes"),
    [
        ("a", "", "only a", "only a"),
        ("bcde", "", "only b, c, d, e", "only b, c, d, e"),
        ("bcdefghi", "", *2 * ("only listed values, none of a, j, k, l, m",)),
        ("bcdefg", "", *2 * ("only b, c, d, e, f and 1 more",)),
        (LETTERS, "", *2 * ("only listed values",)),
        ("", "a", "only listed values, none of a", "none of a"),
        ("", "abcdefgh", "only i, j, k, l, m", "none of a, b, c, d, e and 3 more"),
        ("", LETTERS[:-1], "only m", "none of a, b, c, d, e and 7 more"),
        ("", LETTERS, "no user", "none of a, b, c, d, e and 8 more"),
        ("abc", "c", "only a, b", "only a, b"),
        ("abc", "d", "only a, b, c", "only a, b, c"),
        ("ab", "ab", "no user", "no user"),
    ],
)
def test_the_words_of_an_attribute_name_what_an_ad_allows(
    include: Sequence[str], exclude: Sequence[str], words: str, words_if_missing_passes: str
) -> None:
    for missing_passes, expected in ((False, words), (True, words_if_missing_passes)):
        attribute = Attribute("x", LETTERS, missing_passes_exclude=missing_passes)
        lists = {"x": list(include), "x_exclude": list(exclude)}
        users: list[list[str]] = [[letter] for letter in (*LETTERS, "unknown")] + [[]]
        for user in users:
            (reason,) = explain_lists(TargetingSchema((attribute,), (), 7), lists, {"x": user})
            assert reason.rule == expected
            missing = not include and missing_passes
            listed = user[0] in (include or LETTERS) and user[0] not in exclude if user else False
            assert reason.passes == (listed or (missing and not set(user) & set(LETTERS)))


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
