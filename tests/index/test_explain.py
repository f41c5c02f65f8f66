"""Explanations agree with eligibility, and say what a person would."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.index.forms.component import Reason
from grace.index.forms.components import explain as explain_rule
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import KINDS, Attribute, TargetingSchema, TargetSet
from support.oracle import RawAd, Rule, User, eligible
from support.plain_builder import plain_snapshot
from support.strategies import asking, examples, random_case, random_schema_of


@pytest.mark.parametrize("kind", [None, *KINDS])
@examples(15)
@given(seed=st.integers(0, 2**32 - 1))
def test_all_reasons_pass_exactly_when_the_ad_is_eligible(kind: str | None, seed: int) -> None:
    """By rules of all kinds, and of each kind alone."""
    rng = np.random.default_rng(seed)
    case = random_case(rng, schema=None if kind is None else random_schema_of(rng, kind))
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    ordinals = snapshot.ads.ordinals([ad.ad_id for ad in case.ads]).tolist()
    for user in case.users:
        for ad, ordinal in zip(case.ads, ordinals, strict=True):
            reasons = explain(snapshot, ordinal, user)
            assert all(r.passes for r in reasons) == eligible(case.schema, ad, user)


def explain(snapshot: Snapshot, ordinal: int, user: User) -> tuple[Reason, ...]:
    return explain_rule(snapshot, int(snapshot.ads.ad_rule[ordinal]), asking(user))


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
    snapshot = plain_snapshot(SCHEMA, (2,), [RawAd(2, (0,), 0.0, rules)])
    user = {"country": ["NO", "SE"], "location": ["no", "no/oslo"]}
    country, location = explain(snapshot, 0, user)
    assert (country.passes, country.user, country.deciding) == (False, ("NO", "SE"), ("SE",))
    assert (location.passes, location.deciding) == (True, ("no/oslo",))


LETTERS = tuple("abcdefghijklm")


@pytest.mark.parametrize(
    ("include", "exclude", "words", "words_if_missing_passes"),
    [
        ("a", "", "in [a]", "in [a]"),
        ("bcde", "", "in [b, c, d, e]", "in [b, c, d, e]"),
        ("bcdefghi", "", *2 * ("in [listed values] and x not in [a, j, k, l, m]",)),
        ("bcdefg", "", *2 * ("in [b, c, d, e, f and 1 more]",)),
        (LETTERS, "", *2 * ("in [listed values]",)),
        ("", "a", "in [listed values] and x not in [a]", "not in [a]"),
        ("", "abcdefgh", "in [i, j, k, l, m]", "not in [a, b, c, d, e and 3 more]"),
        ("", LETTERS[:-1], "in [m]", "not in [a, b, c, d, e and 7 more]"),
        ("abc", "c", "in [a, b]", "in [a, b]"),
        ("abc", "d", "in [a, b, c]", "in [a, b, c]"),
    ],
)
def test_the_words_of_an_attribute_name_what_an_ad_allows(
    include: Sequence[str], exclude: Sequence[str], words: str, words_if_missing_passes: str
) -> None:
    for missing_passes, expected in ((False, words), (True, words_if_missing_passes)):
        attribute = Attribute("x", LETTERS, missing_passes_exclude=missing_passes)
        schema = TargetingSchema((attribute,), (), 7)
        rule = (frozenset(include) or None, frozenset(exclude))
        snapshot = plain_snapshot(schema, (2,), [RawAd(1, (0,), 0.0, {"x": rule})])
        users: list[list[str]] = [[letter] for letter in (*LETTERS, "unknown")] + [[]]
        for user in users:
            (reason,) = explain(snapshot, 0, {"x": user})
            assert reason.allows == expected
            missing = not include and missing_passes
            listed = user[0] in (include or LETTERS) and user[0] not in exclude if user else False
            assert reason.passes == (listed or (missing and not set(user) & set(LETTERS)))


@pytest.mark.parametrize(
    ("excluded", "words"),
    [
        ("unknown", "in [male] (user: no value, which counts as unknown)"),
        ("male", "in [unknown] (user: no value, which counts as unknown)"),
    ],
)
def test_a_stand_in_for_a_missing_value_is_not_shown_as_the_users(
    excluded: str, words: str
) -> None:
    schema = TargetingSchema((Attribute("gender", ("male", "unknown"), "unknown"),), (), 7)
    ad = RawAd(1, (0,), 0.0, {"gender": (None, frozenset({excluded}))})
    (reason,) = explain(plain_snapshot(schema, (2,), [ad]), 0, {"gender": []})
    assert str(reason) == f"gender {words}"
    assert (reason.user, reason.deciding) == ((), ("unknown",))
