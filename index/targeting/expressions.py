"""Rules as expressions: `country in [US, CA] and (age in [21..34] or not interests = cars)`.

A bare text has letters and digits of any alphabet and `_ - + / . : @ # %`, no two dots in a row.
Any text may be in double quotes, with the escapes of JSON. Keywords may have any case; in the place
of a value they are values (`state in [IN, OR]`), and `true` and `false` of any case are the texts
in lower case. Numbers are decimal, such as `-1.5e3`; for attributes and sets they are texts, but
an attribute takes ranges and comparisons of those of its values that are integers.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from math import inf, isfinite, nextafter, prod
from typing import Any, NamedTuple

from grace.index.targeting.leaves import (
    A_NUMBER,
    Clause,
    ExpressionError,
    Item,
    Leaves,
    Span,
    leaves_of,
)
from grace.index.targeting.schema import TargetingSchema

MOST_CLAUSES = 64
_MOST_BYTES = 64 * 1024
_MOST_LEVELS = 100  # of parentheses
_EXACT = 2.0**53  # float64 has every integer up to it
_MOST_COUNTED = 10**6  # clauses; more count as this many

_TOKEN = re.compile(
    r"""\s*+(?:
    (?P<word>(?:[\w\-+/:@\#%]|\.(?!\.))++)
    |(?P<text>"(?:[^"\\]|\\.)*+")
    |(?P<symbol>\.\.|[<>!]=|[()\[\],=<>])
    |(?P<end>\Z)
    |(?P<bad>.))""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_COMPARISONS: Mapping[str, Callable[[float], Span]] = {
    "<": lambda number: (-inf, nextafter(number, -inf)),
    "<=": lambda number: (-inf, number),
    ">": lambda number: (nextafter(number, inf), inf),
    ">=": lambda number: (number, inf),
}


def clauses_of(text: str, schema: TargetingSchema) -> list[Clause]:
    """Return clauses: a user passes one of them if and only if they pass the expression."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > _MOST_BYTES:
        raise ExpressionError(0, f"{size} bytes, at most {_MOST_BYTES}; make several ads of it")
    leaves = leaves_of(schema)
    parsed = _Reader(text, schema, leaves).all()
    if parsed.number > MOST_CLAUSES:
        count = f"{parsed.number}{' or more' if parsed.number == _MOST_COUNTED else ''} clauses"
        remedy = "list more values in one `in`, or make several ads"
        raise ExpressionError(0, f"{count}, at most {MOST_CLAUSES}; {remedy}")
    clauses = (_clause(parts, leaves) for parts in parsed.alternatives)
    distinct = {json.dumps(each, sort_keys=True): each for each in clauses if each is not None}
    if not distinct:
        raise ExpressionError(0, "no user can pass; correct what `and` joins, or remove the ad")
    return list(distinct.values())


Part = tuple[str, Any]  # a name, and an alternative of one of its leaves


class _Parsed(NamedTuple):
    """Alternatives, each of which is parts that must all pass. Too many are only counted."""

    number: int
    alternatives: Sequence[tuple[Part, ...]]


def _joined(parsed: Sequence[_Parsed], all_pass: bool) -> _Parsed:
    if len(parsed) == 1:
        return parsed[0]
    numbers = [each.number for each in parsed]
    number = min(prod(numbers) if all_pass else sum(numbers), _MOST_COUNTED)
    if number > MOST_CLAUSES:
        return _Parsed(number, ())
    lists = [each.alternatives for each in parsed]
    if all_pass:
        return _Parsed(number, [tuple(chain.from_iterable(each)) for each in product(*lists)])
    return _Parsed(number, list(chain.from_iterable(lists)))


def _clause(parts: Sequence[Part], leaves: Mapping[str, Leaves]) -> Clause | None:
    """Return the columns of parts that must all pass; None if no user passes them."""
    by_name: dict[str, list[Any]] = {}
    for name, alternative in parts:
        by_name.setdefault(name, []).append(alternative)
    clause: dict[str, Any] = {}
    for name, chosen in by_name.items():
        columns = leaves[name].columns(chosen)
        if columns is None:
            return None
        clause |= columns
    return clause


class _Token(NamedTuple):
    """`key` is what a keyword or symbol is compared with. `text` is without quotes and escapes."""

    kind: str
    key: str
    text: str
    position: int
    end: int

    @property
    def number(self) -> float | None:
        """The finite number that a bare text is."""
        if self.kind != "word" or not _NUMBER.fullmatch(self.text):
            return None
        number = float(self.text)
        is_exact = abs(number) <= _EXACT or not self.text.lstrip("+-").isdigit()
        return number if isfinite(number) and is_exact else None

    def refused(self, expected: str) -> ExpressionError:
        found = "the end" if self.kind == "end" else repr(self.text)
        remedy = "; put texts in double quotes, escaped as in JSON" if self.kind == "bad" else ""
        return ExpressionError(self.position, f"expected {expected}, found {found}{remedy}")


class _Reader:
    """A parser that reads each token once, and pushes negations to the leaves as it goes."""

    def __init__(self, text: str, schema: TargetingSchema, leaves: Mapping[str, Leaves]) -> None:
        self._text, self._schema, self._leaves = text, schema, leaves
        self._next = self._token(0)

    def all(self) -> _Parsed:
        parsed = self._expression(negated=False, level=0)
        self._take("", "'and', 'or' or the end")
        return parsed

    def _expression(self, negated: bool, level: int) -> _Parsed:
        ors: list[_Parsed] = []
        while True:
            ands = [self._factor(negated, level)]
            while self._took("and"):
                ands.append(self._factor(negated, level))
            ors.append(_joined(ands, all_pass=not negated))
            if not self._took("or"):
                return _joined(ors, all_pass=negated)

    def _factor(self, negated: bool, level: int) -> _Parsed:
        while self._took("not"):
            negated = not negated
        position = self._next.position
        if not self._took("("):
            return self._leaf(negated)
        if level == _MOST_LEVELS:
            raise ExpressionError(position, f"expected at most {_MOST_LEVELS} open '(', found more")
        parsed = self._expression(negated, level + 1)
        self._take(")", "'and', 'or' or ')'")
        return parsed

    def _leaf(self, negated: bool) -> _Parsed:
        name = self._read()
        leaves = self._leaves.get(name.text)
        if leaves is None:
            raise self._no_leaf(name)
        excludes = self._took("not")
        operator = self._read()
        if operator.key == "in":
            items = self._list()
        elif operator.key in ("=", "!=") and not excludes:
            items = [self._value()]
        elif operator.key in _COMPARISONS and not excludes:
            items = [Item(operator.position, None, _COMPARISONS[operator.key](self._number()))]
        else:
            others = "" if excludes else ", 'not in', '=', '!=', '<', '<=', '>' or '>='"
            raise operator.refused(f"'in'{others}")
        negated ^= excludes or operator.key == "!="
        found = leaves.alternatives(items, negated)
        return _Parsed(len(found), [((name.text, each),) for each in found])

    def _no_leaf(self, name: _Token) -> ExpressionError:
        if name.text in self._schema.names:
            place = "flights go into columns of the ad, properties into filters of requests"
            return name.refused(f"an attribute, a set or a range ({place})")
        names = ", ".join(self._leaves)
        return name.refused(f"'not', '(' or the name of an attribute, a set or a range ({names})")

    def _list(self) -> list[Item]:
        self._take("[", "'[' and a list of values")
        items = [self._item()]
        while self._took(","):
            items.append(self._item())
        self._take("]", "',' or ']'")
        return items

    def _item(self) -> Item:
        first = self._next
        if self._took(".."):
            return Item(first.position, None, (-inf, self._number()))
        item = self._value()
        if not self._took(".."):
            return item
        if item.span is None:
            raise first.refused(A_NUMBER)
        low, _ = item.span
        last = self._next
        high = inf if last.key in (",", "]") else self._number()
        if low > high:
            a, b = first.text, last.text
            wanted = f"{b}..{a}, or {a}.., ..{b} to wrap around"
            raise ExpressionError(first.position, f"expected {wanted}, found {a}..{b}")
        return Item(first.position, None, (low, high))

    def _value(self) -> Item:
        token = self._read()
        if token.kind not in ("word", "text") or not token.text:
            raise token.refused("a value")
        text = token.key if token.key in ("true", "false") else token.text
        number = token.number
        return Item(token.position, text, None if number is None else (number, number))

    def _number(self) -> float:
        token = self._read()
        if (number := token.number) is None:
            raise token.refused(A_NUMBER)
        return number

    def _took(self, key: str) -> bool:
        """Return whether this keyword or symbol is next, and read it."""
        return self._next.key == key and bool(self._read())

    def _take(self, key: str, expected: str) -> None:
        if not self._took(key):
            raise self._next.refused(expected)

    def _read(self) -> _Token:
        token, self._next = self._next, self._token(self._next.end)
        return token

    def _token(self, start: int) -> _Token:
        found = _TOKEN.match(self._text, start)
        assert found is not None
        assert found.lastgroup is not None
        kind, text = found.lastgroup, found[found.lastgroup]
        key = '"' if kind == "text" else text.lower()
        if kind == "text":
            try:
                text = json.loads(text)
                text.encode()
            except ValueError:
                kind = "bad"
        return _Token(kind, key, text, found.start(found.lastgroup), found.end())
