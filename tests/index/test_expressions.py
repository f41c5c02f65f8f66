"""Expressions mean what they mean as trees: clauses, plain Python and JSONLogic agree on users."""

import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.index.targeting.expressions import MOST_CLAUSES, ExpressionError, clauses_of
from grace.index.targeting.schema import (
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from support.oracle import (
    RawRule,
    User,
    attribute_passes,
    first_failure,
    range_passes,
    set_passes,
    values_of,
)
from support.strategies import examples

COUNTRIES = ("US", "IN", "OR", "new york", "true", 'a"b\\c', "18-24", "é..è")
HOURS = tuple(map(str, range(24)))
INTERESTS = ("cars", "Not", "us/ny/new york", "[x]", "7", "1e3")
NUMBERS = (-1e308, -2.5, 0.0, 1.0, 20.0, 30.0, 1e17)


def schema_of(passes: bool = False, missing: str | None = None) -> TargetingSchema:
    return TargetingSchema(
        attributes=(
            Attribute("country", COUNTRIES, missing, missing_passes_exclude=passes),
            Attribute("hour", HOURS, missing_passes_exclude=not passes),
        ),
        sets=(
            TargetSet("interests", 64, 1, 64, missing_passes_exclude=passes),
            TargetSet("segments", 64, 1, 64, missing_passes_exclude=not passes),
        ),
        hash_seed=0,
        ranges=(Range("age", missing_passes=passes), Range("income", missing_passes=not passes)),
        flights=(Flight("flight"),),
        properties=(Property("category"),),
    )


VALUES = {"country": COUNTRIES, "hour": HOURS, "interests": INTERESTS, "segments": INTERESTS}


@dataclass(frozen=True)
class Leaf:
    """`how` is one of in, not in, =, != and comparisons. An item is a text, a number or two ends."""

    name: str
    how: str
    items: tuple[Any, ...]

    @property
    def excludes(self) -> bool:
        return self.how in ("not in", "!=")


@dataclass(frozen=True)
class Tree:
    """`how` is one of and, or, not."""

    how: str
    parts: "tuple[Leaf | Tree, ...]"


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    name = draw(st.sampled_from(("country", "hour", "interests", "segments", "age", "income")))
    how = draw(st.sampled_from(("in", "in", "not in", "=", "!=", "<", "<=", ">", ">=")))
    single = how in ("=", "!=")
    if how[0] in "<>" and (name == "hour" or name not in VALUES):
        number = st.integers(5, 19) if name == "hour" else st.sampled_from(NUMBERS)
        return Leaf(name, how, (draw(number),))
    if name in VALUES:
        how = how if how[0] not in "<>" else "in"
        item: st.SearchStrategy[Any] = st.sampled_from(VALUES[name])
        if name == "hour":
            item |= spans(st.integers(0, 23)) if not single else st.nothing()
    else:
        item = st.sampled_from(NUMBERS)
        item |= spans(item) if not single else st.nothing()
    items = draw(st.lists(item, min_size=1, max_size=1 if single else 3))
    return Leaf(name, how, tuple(items))


def spans(ends: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Two ends, of which one may be open."""
    both = st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))
    return both | st.tuples(st.none(), ends) | st.tuples(ends, st.none())


TREES: st.SearchStrategy[Any] = st.recursive(
    leaves(),
    lambda parts: st.builds(
        Tree, st.sampled_from(("and", "or")), st.lists(parts, min_size=1, max_size=3).map(tuple)
    )
    | st.builds(Tree, st.just("not"), st.tuples(parts)),
    max_leaves=7,
)


def written(tree: Leaf | Tree, rng: random.Random) -> str:
    """Write a tree as text, in one of many ways."""

    def space() -> str:
        return rng.choice(("", " ", "\n ", "\t"))

    def word(text: str) -> str:
        return "".join(rng.choice((each.lower(), each.upper())) for each in text)

    def value(item: Any) -> str:
        if isinstance(item, tuple):
            return f"{space()}..{space()}".join("" if end is None else str(end) for end in item)
        if not isinstance(item, str):
            return rng.choice((str(item), repr(item).removesuffix(".0")))
        if item.replace("-", "").isalnum() and rng.random() < 0.6:
            return word(item) if item == "true" else item
        return json.dumps(item, ensure_ascii=rng.random() < 0.5)

    if isinstance(tree, Leaf):
        shown = f"{space()},{space()}".join(map(value, tree.items))
        if tree.how not in ("in", "not in"):
            return f"{tree.name}{space()}{tree.how}{space()}{shown}"
        how = "  ".join(map(word, tree.how.split()))
        return f"{tree.name} {how}{space()}[{space()}{shown}{space()}]"
    parts = [written(part, rng) for part in tree.parts]
    if tree.how == "not":
        inner = tree.parts[0]
        bare = (isinstance(inner, Leaf) or inner.how == "not") and rng.random() < 0.5
        return f"{word('not')} {parts[0]}" if bare else f"{word('not')}({parts[0]})"
    for at, part in enumerate(tree.parts):
        loose = isinstance(part, Tree) and part.how == "or" and tree.how == "and"
        if loose or rng.random() < 0.3:
            parts[at] = f"({space()}{parts[at]}{space()})"
    return f"\n{word(tree.how)} ".join(parts)


Evaluate = Callable[[Leaf, bool], Any]


def folded(tree: Leaf | Tree, leaf: Evaluate, join: Callable[[str, list[Any]], Any], neg: bool) -> Any:
    """Push negations to the leaves and join what `leaf` makes of them."""
    if isinstance(tree, Leaf):
        return leaf(tree, neg ^ tree.excludes)
    if tree.how == "not":
        return folded(tree.parts[0], leaf, join, not neg)
    how = {"and": "or", "or": "and"}[tree.how] if neg else tree.how
    return join(how, [folded(part, leaf, join, neg) for part in tree.parts])


def within(number: float, leaf: Leaf) -> bool:
    """The comparison or list of a leaf, on one number."""
    compare: dict[str, Callable[[float, float], bool]] = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    if leaf.how in compare:
        return compare[leaf.how](number, leaf.items[0])
    for item in leaf.items:
        low, high = item if isinstance(item, tuple) else (float(item), float(item))
        if (low is None or low <= number) and (high is None or number <= high):
            return True
    return False


def named(leaf: Leaf) -> frozenset[str]:
    """The values that a leaf of an attribute or a set names."""
    if leaf.name == "hour":
        return frozenset(hour for hour in HOURS if within(int(hour), leaf))
    return frozenset(leaf.items)


def passes_tree(schema: TargetingSchema, tree: Leaf | Tree, user: User) -> bool:
    def passes(leaf: Leaf, excludes: bool) -> bool:
        for each in schema.ranges:
            if each.name == leaf.name:
                number = user.get(each.name)
                if not isinstance(number, float):
                    return range_passes(each, (0.0, 0.0), None)
                return within(number, leaf) != excludes
        rule = (None, named(leaf)) if excludes else (named(leaf), None)
        for attribute in schema.attributes:
            if attribute.name == leaf.name:
                return attribute_passes(attribute, rule, values_of(user, leaf.name))
        (target,) = (each for each in schema.sets if each.name == leaf.name)
        return set_passes(target, rule, values_of(user, leaf.name))

    return bool(folded(tree, passes, lambda how, parts: {"and": all, "or": any}[how](parts), False))


def json_logic_of(schema: TargetingSchema, tree: Leaf | Tree) -> Any:
    """Translate to JSONLogic, for the data of `json_data`. `all` of no values is false there."""
    passes = {t.name: t.missing_passes_exclude for t in (*schema.attributes, *schema.sets)}
    passes |= {each.name: each.missing_passes for each in schema.ranges}
    value = {"var": ""}

    def translated(leaf: Leaf, excludes: bool) -> Any:
        user = {"var": leaf.name}
        if leaf.name not in VALUES:
            ends = [item if isinstance(item, tuple) else (item, item) for item in leaf.items]
            tests: list[Any] = [
                {"and": [a is None or {"<=": [a, user]}, b is None or {"<=": [user, b]}]}
                for a, b in ends
            ]
            if leaf.how[0] in "<>":
                tests = [{leaf.how: [user, leaf.items[0]]}]
            test = {"!": {"or": tests}} if excludes else {"or": tests}
            return {"if": [{"missing": [leaf.name]}, passes[leaf.name], test]}
        is_named = {"in": [value, sorted(named(leaf))]}
        if leaf.name in ("interests", "segments"):
            if excludes:
                return {"if": [{"!": user}, passes[leaf.name], {"none": [user, is_named]}]}
            return {"some": [user, is_named]}
        listed = {"in": [value, list(VALUES[leaf.name])]}
        excluded = {"if": [listed, {"!": is_named}, passes[leaf.name]]}
        return {"all": [user, excluded if excludes else is_named]}

    return folded(tree, translated, lambda how, parts: {how: parts}, False)


def json_data(schema: TargetingSchema, user: User) -> dict[str, Any]:
    """The user with the attributes' `missing` values filled in, or a value that is not listed."""
    filled = {a.name: list(user.get(a.name, ())) or [a.missing or "-"] for a in schema.attributes}  # type: ignore[arg-type]
    return {**{each.name: [] for each in schema.sets}, **user, **filled}


def random_users(rng: random.Random, count: int) -> list[User]:
    def user() -> dict[str, Any]:
        made: dict[str, Any] = {
            name: rng.choices((*values, "new"), k=rng.choice((0, 1, 1, 2)))
            for name, values in VALUES.items()
            if rng.random() < 0.9
        }
        for name in ("age", "income"):
            if rng.random() < 0.8:
                made[name] = math.nextafter(rng.choice(NUMBERS), rng.choice((-1e308, 0, 1e308)))
        return made

    return [user() for _ in range(count)]


def raw_rule(schema: TargetingSchema, clause: Mapping[str, Any]) -> RawRule:
    def values(column: str) -> frozenset[str] | None:
        return frozenset(clause[column]) if column in clause else None

    assert clause.keys() <= set(schema.rule_columns)
    return RawRule(
        {name: (values(name), values(f"{name}_exclude")) for name in VALUES},
        {n: tuple(map(frozenset, clause.get(f"{n}_all", ()))) for n in ("interests", "segments")},
        {n: (clause.get(f"{n}_min"), clause.get(f"{n}_max")) for n in ("age", "income")},
    )


def disagreements(
    tree: Any, seed: int, passes: bool, missing: str | None, evaluate: Any, users: int
) -> Sequence[User]:
    """The users about whom the clauses, the tree and, if given, JSONLogic do not all agree."""
    rng, schema = random.Random(seed), schema_of(passes, missing)
    try:
        clauses = [raw_rule(schema, each) for each in clauses_of(written(tree, rng), schema)]
    except ExpressionError as error:
        if "clauses, at most" in str(error):
            return []
        assert "no user can pass" in str(error)
        clauses = []
    logic = json_logic_of(schema, tree)
    found = []
    for user in random_users(rng, users):
        answers = {any(first_failure(schema, each, user) is None for each in clauses)}
        answers.add(passes_tree(schema, tree, user))
        if evaluate is not None:
            answers.add(bool(evaluate(logic, json_data(schema, user))))
        if len(answers) > 1:
            found.append(user)
    return found


CASES = {
    "tree": TREES,
    "seed": st.integers(0, 2**32),
    "passes": st.booleans(),
    "missing": st.sampled_from((None, "US")),
}


@examples(300)
@given(**CASES)
def test_clauses_pass_the_users_of_the_tree(
    tree: Any, seed: int, passes: bool, missing: str | None
) -> None:
    assert disagreements(tree, seed, passes, missing, None, users=20) == []


@pytest.mark.parametrize(
    ("trees", "users"), [(100, 20), pytest.param(2000, 500, marks=pytest.mark.soak)]
)
def test_json_logic_passes_the_same_users(trees: int, users: int) -> None:
    evaluate = pytest.importorskip("json_logic").jsonLogic

    @examples(trees)
    @given(**CASES)
    def agree(tree: Any, seed: int, passes: bool, missing: str | None) -> None:
        assert disagreements(tree, seed, passes, missing, evaluate, users) == []

    agree()
