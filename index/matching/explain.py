"""Explain why a user may or may not see an ad: every rule of the ad, and the user's values.

The words are the same wherever rules are shown (docs/targeting.md): `only` for an attribute, whose
values must all be allowed, `any of` for a set, and `none of` for both.
"""

from grace.index.forms.component import Reason, ValuesOf
from grace.index.forms.components import components_of, parts_of
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema


def explain(snapshot: Snapshot, ad: int, user: ValuesOf) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its ordinal. It is eligible if and only if all pass."""
    rule = int(snapshot.ads.ad_rule[ad])
    return tuple(
        reason
        for component, ids, rows in parts_of(snapshot)
        for reason in component.explain(rows, int(ids[rule]), user)
    )


def explain_lists(schema: TargetingSchema, lists: ValuesOf, user: ValuesOf) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its lists: those of its row in an ads table, by column."""
    return tuple(
        reason
        for component in components_of(schema)
        for reason in component.explain_lists(lists, user)
    )
