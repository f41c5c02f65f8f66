"""Columns of ranges and properties become rules: equal ones the same, impossible ones none."""

from math import inf, isnan, nan
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace.index.builder.rule_table import FAULTS, REFUSED, RuleTable
from grace.index.forms.component import BAD_VALUE, ListColumn
from grace.index.forms.interval import number_column
from grace.index.targeting.schema import Property, Range, TargetingSchema
from support.strategies import examples

NUMBERS = (-0.0, 0.0, -1.5, 2.0**53, 1.0, inf, -inf, nan)
BAD, EMPTY = (next(n for n, words in FAULTS.items() if w in words) for w in ("bad", "the range"))

Ends = tuple[float | None, float | None]


def fault_of(ends: Ends, codes: list[int] | None, missing_passes: bool) -> int:
    """The first column that is wrong counts. A user's number is finite.

    (1.0, -0.0) has none: only users without a number see it, if the schema says so.
    """
    if any(end is not None and isnan(end) for end in ends):
        return BAD
    low, high = -inf if ends[0] is None else ends[0], inf if ends[1] is None else ends[1]
    nobody = low > high or low == inf or high == -inf
    if nobody and not (missing_passes and str(ends) == "(1.0, -0.0)"):
        return EMPTY
    return BAD if BAD_VALUE in (codes or ()) else 0


@examples(35)
@given(seed=st.integers(0, 2**32), missing_passes=st.booleans())
def test_equal_rows_are_one_rule_and_a_row_that_nobody_passes_is_refused(
    seed: int, missing_passes: bool
) -> None:
    random, rows = Random(seed), range(77)
    ends: list[Ends] = [
        (random.choice((None, *NUMBERS[:4], *NUMBERS)), random.choice((None, *NUMBERS)))
        for _ in rows
    ]
    values = [
        random.choice((None, [], random.choices((3, 5, 1, 5, BAD_VALUE), k=row % 3)))
        for row in rows
    ]
    columns = []
    for side in zip(*ends, strict=True):
        numbers = np.array([0.0 if end is None else end for end in side])
        columns.append(number_column(numbers, np.array([end is not None for end in side])))
    offsets = np.cumsum([0, *(len(each or ()) for each in values)], dtype=np.int64)
    present = np.array([each is not None for each in values], np.uint8)
    codes = np.array([code for each in values for code in each or ()], np.int32)
    ranges, properties = (Range("age", missing_passes),), (Property("category"),)
    schema = TargetingSchema((), (), 7, ranges=ranges, properties=properties)
    table, rules = RuleTable(schema, 2), np.zeros(len(rows), np.int32)
    faults = table.add_rows([*columns, ListColumn(offsets, present, codes)], rules)
    table.close()
    meant: dict[tuple[tuple[float, float], frozenset[int]], set[int]] = {}
    for row in rows:
        fault = fault_of(ends[row], values[row], missing_passes)
        assert faults[row, 0] == fault
        assert (rules[row] == REFUSED) == (fault != 0)
        if not fault:
            low, high = ends[row]  # an infinite end is as good as an open one
            opens = (-inf if low is None else low, inf if high is None else high)
            meant.setdefault((opens, frozenset(values[row] or ())), set()).add(int(rules[row]))
    assert sorted(rule for each in meant.values() for rule in each) == [*range(len(meant))]


def test_an_ad_one_of_whose_clauses_nobody_passes_is_refused() -> None:
    table = RuleTable(TargetingSchema((), (), 7, ranges=(Range("age"),)), 1)
    ends = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 3.0]])
    rules, given = np.zeros(3, np.int32), np.ones(3, np.bool_)
    table.add_rows([number_column(side, given) for side in ends.T], rules)
    clauses = rules[[0, 1, 1, 2, 0, 2, 0, 0]]
    joined = table.join(np.arange(0, 10, 2), clauses)
    assert rules.tolist() == [0, REFUSED, 1]
    assert joined.tolist()[:2] == [REFUSED, REFUSED]
    taken, numbered = table.take(joined[2:])
    table.close()
    assert [taken.rules_of(int(rule)) for rule in numbered] == [[0, 1], [0]]
