"""Expressions: clauses, and the tree on plain Python values, agree about every user."""

import json
import math
import operator
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grace.index.targeting.expressions import ExpressionError, clauses_of
from grace.index.targeting.schema import (
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
    load_schema,
)
from support.documents import blocks_of
from support.oracle import Rules, User, attribute_passes, failure_of, range_passes, set_passes
from support.strategies import examples

COUNTRIES = ("US", "or", "new york", "true", 'a"b\\c', "18-24", "é..è")
INTERESTS = ("cars", "Not", "us/ny", "[x]")
NUMBERS = (-1e308, -2.5, 0.0, 1.0, 20.0, 1e17)
VALUES = {"country": COUNTRIES, "interests": INTERESTS}
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def schema_of(passes: bool = False, missing: str | None = None) -> TargetingSchema:
    """`passes`: whether users without a value or number pass what excludes, and ranges."""
    hours = Attribute("hour", tuple(map(str, range(23, -1, -1))))
    return TargetingSchema(
        attributes=(Attribute("country", COUNTRIES, missing, passes), hours),
        sets=(TargetSet("interests", 64, 1, 64, passes),),
        hash_seed=0,
        ranges=(Range("age", passes),),
        flights=(Flight("flight"),),
        properties=(Property("category"),),
    )


class Leaf(NamedTuple):
    """An item is a value, a number, or two ends, of which one may be None."""

    name: str
    how: str
    items: tuple[Any, ...]


class Tree(NamedTuple):
    how: str  # and, or, not
    parts: tuple[Any, ...]


def spans(ends: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    both = st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))
    return both | st.tuples(st.none(), ends) | st.tuples(ends, st.none())


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    name = draw(st.sampled_from(("country", "interests", "age")))
    how = draw(st.sampled_from(("in", "not in", "=", "!=")))
    items = st.sampled_from(VALUES.get(name, NUMBERS))
    if name == "age":
        how = draw(st.sampled_from((how, *COMPARISONS)))
        items = items | spans(items) if "in" in how else items
    most = 3 if "in" in how else 1
    return Leaf(name, how, tuple(draw(st.lists(items, min_size=1, max_size=most))))


def joined(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(parts, min_size=1, max_size=3).map(tuple)
    negated = parts.map(lambda part: Tree("not", (part,)))
    return st.builds(Tree, st.sampled_from(("and", "or")), lists) | negated


TREES: st.SearchStrategy[Any] = st.recursive(leaves(), joined, max_leaves=7)


def written(tree: Any, rng: random.Random) -> str:
    """Write a tree as text, in one of many ways."""
    gap = rng.choice(("", " ", "\n ", "\t"))

    def word(text: str) -> str:
        return "".join(rng.choice((each.lower(), each.upper())) for each in text)

    def value(item: Any) -> str:
        if isinstance(item, tuple):
            return f"{gap}..{gap}".join("" if end is None else repr(end) for end in item)
        if not isinstance(item, str):
            return repr(item).removesuffix(".0")
        if item.replace("-", "").isalnum() and rng.random() < 0.6:
            return word(item) if item == "true" else item
        return json.dumps(item, ensure_ascii=rng.random() < 0.5)

    if isinstance(tree, Leaf):
        shown = f"{gap},".join(map(value, tree.items))
        if "in" in tree.how:
            return f"{tree.name} {word(tree.how)}{gap}[{gap}{shown}{gap}]"
        return f"{tree.name}{gap}{tree.how}{gap}{shown}"
    parts = [written(part, rng) for part in tree.parts]
    for at, part in enumerate(tree.parts):
        bare = part.how not in ("and", "or") or (part.how, tree.how) == ("and", "or")
        parts[at] = parts[at] if bare and rng.random() < 0.7 else f"({gap}{parts[at]})"
    return f"not {parts[0]}" if tree.how == "not" else f"{gap} {word(tree.how)} ".join(parts)


def folded(
    tree: Any, negated: bool, leaf: Callable[[Leaf, bool], Any], join: Callable[[str, Any], Any]
) -> Any:
    """Push negations to the leaves. `leaf` is called with whether the leaf excludes."""
    if isinstance(tree, Leaf):
        return leaf(tree, negated ^ (tree.how in ("not in", "!=")))
    if tree.how == "not":
        return folded(tree.parts[0], not negated, leaf, join)
    parts = [folded(part, negated, leaf, join) for part in tree.parts]
    return join({"and": "or", "or": "and"}[tree.how] if negated else tree.how, parts)


def within(number: float, leaf: Leaf) -> bool:
    if leaf.how in COMPARISONS:
        return COMPARISONS[leaf.how](number, leaf.items[0])
    ends = (item if isinstance(item, tuple) else (item, item) for item in leaf.items)
    return any((a is None or a <= number) and (b is None or number <= b) for a, b in ends)


def passes_tree(schema: TargetingSchema, tree: Any, user: User) -> bool:
    def passes(leaf: Leaf, excludes: bool) -> bool:
        if leaf.name == "age":
            number = user.get("age")
            if isinstance(number, float):
                return within(number, leaf) != excludes
            return range_passes(schema.ranges[0], (0.0, 0.0), None)
        values = frozenset(leaf.items)
        rule = (None, values) if excludes else (values, None)
        if leaf.name == "country":
            return attribute_passes(schema.attributes[0], rule, user.get(leaf.name, ()))
        return set_passes(schema.sets[0], rule, user.get(leaf.name, ()))

    join = {"and": all, "or": any}
    return bool(folded(tree, False, passes, lambda how, parts: join[how](parts)))


def random_user(rng: random.Random) -> dict[str, Any]:
    user: dict[str, Any] = {
        name: rng.choices((*values, "new"), k=rng.choice((0, 1, 1, 2)))
        for name, values in VALUES.items()
    }
    if rng.random() < 0.8:
        number = rng.choice(NUMBERS)
        user["age"] = math.nextafter(number, rng.choice((-math.inf, number, math.inf)))
    return user


def raw_rule(clause: Mapping[str, Any]) -> Rules:
    def cell(column: str) -> frozenset[str] | None:
        return frozenset(clause[column]) if column in clause else None

    rules = {name: (cell(name), cell(f"{name}_exclude")) for name in VALUES}
    groups = tuple(map(frozenset, clause.get("interests_all", ())))
    ages = (clause.get("age_min"), clause.get("age_max"))
    return {**rules, "interests_all": groups, "age": ages}


def test_clauses_pass_the_users_whom_the_tree_passes() -> None:
    """Draw trees and users, and compare all answers."""
    seen: Counter[int] = Counter()

    @examples(600)
    @given(TREES, st.integers(0, 2**32), st.booleans(), st.sampled_from((None, "US")))
    def agree(tree: Any, seed: int, passes: bool, missing: str | None) -> None:
        rng, schema = random.Random(seed), schema_of(passes, missing)
        try:
            clauses = [raw_rule(clause) for clause in clauses_of(written(tree, rng), schema)]
        except ExpressionError as error:
            assert "no user can pass" in str(error) or "clauses, at most 64" in str(error)
            if "clauses" in str(error):
                return
            clauses = []
        seen[min(len(clauses), 2)] += 1
        for user in (random_user(rng) for _ in range(20)):
            passed = any(failure_of(schema, each, user) is None for each in clauses)
            assert passed == passes_tree(schema, tree, user)

    agree()
    assert min(seen[count] for count in (0, 1, 2)) > 0


def test_an_example_has_the_columns_of_its_clauses() -> None:
    text = """country in [US, "or"] and not country != US and hour in [9..11, 2] and hour > 2
        and not hour in [..9] and (age in [21..34] or interests in [cars, tv] and interests = x)"""
    both = {"country": ["US"], "hour": ["11", "10"]}
    groups = [["cars", "tv"], ["x"]]
    assert clauses_of(text, schema_of()) == [
        {**both, "age_min": 21.0, "age_max": 34.0},
        {**both, "interests_all": groups},
    ]
    merged = clauses_of("interests in [a, b] or interests in [b, a, b]", schema_of())
    assert merged == [{"interests": ["a", "b"]}]
    no_number = [{"age_min": 1.0, "age_max": 0.0}]
    assert clauses_of("not age in [..5, 5..]", schema_of(passes=True)) == no_number


DEEP = "(" * 101 + "age = 1" + ")" * 101
FAULTS = [
    *yaml.safe_load(Path(__file__).with_name("expression_faults.yaml").read_text(encoding="utf-8")),
    (DEEP, 100, "at most 100 open '('"),
    ("age = 1 or " * 64 + "age = 2", 0, "65 clauses, at most 64"),
    ("(age in [1, 2]) and " * 3000 + "age = 2", 0, "1000000 or more clauses"),
    (f"country not in {json.dumps(COUNTRIES)}", 0, "no user can pass"),
    ("interests = " + "é" * 32768, 0, "65548 bytes, at most 65536"),
]


@pytest.mark.parametrize(("text", "position", "fault"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_fault_has_its_position_and_what_was_expected(
    text: str, position: int, fault: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        clauses_of(text, schema_of())
    assert fault in str(caught.value)
    assert str(caught.value).startswith(f"at {position}: ")
    assert caught.value.position == position


WORDS = st.sampled_from((*"()[],=<>", "..", "and", "not", "in", "age", "interests", "-1", '"x"'))


@examples(500)
@given(st.text(st.characters()) | st.lists(WORDS | st.text(max_size=2)).map(" ".join))
def test_any_text_has_clauses_or_a_fault_at_a_position(text: str) -> None:
    try:
        assert clauses_of(text, schema_of())
    except ExpressionError as error:
        assert 0 <= error.position <= len(text)


@pytest.mark.parametrize(
    "repeated",
    '(|not |interests in [a] or |interests != a and |hour > 3 and |age != 1 and |"|[| '.split("|"),
)
def test_work_grows_with_the_text_and_no_faster(repeated: str) -> None:
    def calls(size: int) -> int:
        seen: list[str] = []
        schema, text = schema_of(), (repeated * size)[:size] + " age = 1"
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        try:
            clauses_of(text, schema)
        except ExpressionError:
            pass
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(65_000) < 2.5 * calls(32_500) + 1000


def test_the_expressions_of_the_page_on_targeting_are_for_its_schema(
    repository: Path, tmp_path: Path
) -> None:
    blocks = {each.language: each.text for each in blocks_of(repository / "docs" / "targeting.md")}
    (tmp_path / "targeting.yaml").write_text(blocks["yaml"])
    schema = load_schema(tmp_path / "targeting.yaml")
    first, second = (clauses_of(text, schema) for text in blocks["rules"].splitlines())
    assert [clause.get("income_min") for clause in first] == [50_000, None]
    hours = [f"{hour}" for day in (0, 24) for hour in range(day + 9, day + 18)]
    assert second == [{"hour": hours, "gender_exclude": ["male"]}]
