"""Decide on the role of each column of an ads table, with a reason.

The id, the SID, the weight and the title are found by their names and values. Every other column
is an entity, a rule (an attribute or a set), left out or ignored. A column that could be a rule is
one if its name or the log says so. Otherwise it is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations

import numpy as np

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import ColumnFacts, Kind
from grace.index.proposal.log import UserColumn, best_user
from grace.index.proposal.names import (
    base_column,
    excluded_by,
    is_entity,
    names_users,
    plain_name,
    rule_name,
    singular,
    stem,
    weight_rank,
    words,
)
from grace.index.proposal.separators import are_paths
from grace.index.targeting.schema import EXCLUDE_SUFFIX, MAX_ENTITIES

MOST_ATTRIBUTE_VALUES = 64
_LONGEST_VALUE = 100  # characters; longer ones are prose
_OWN_TEXTS = 0.8  # distinct values by rows with a value, from which on a column is no rule
_FEW_ROWS = 20
_LEAST_DIMS = 8  # of lists of floats that are embeddings under any name
_DESCRIBES = "nothing says that it limits who may see the ad"
_UNNAMED = "the column has no name, so a build cannot read it: give it one"


class Role(StrEnum):
    ID = "ad_id"
    SID = "sid"
    WEIGHT = "ad_weight"
    TITLE = "title"
    ENTITY = "entity"
    ATTRIBUTE = "attribute"
    SET = "set"
    EXCLUDE = "exclude list"
    EMBEDDING = "embedding"
    LEFT_OUT = "left out"
    IGNORED = "ignored"


RULES = (Role.ATTRIBUTE, Role.SET)
LIMITING = (*RULES, Role.EXCLUDE)
UNREAD = (Role.EMBEDDING, Role.LEFT_OUT, Role.IGNORED)
NAMED_BY_ROLE = (Role.ID, Role.SID, Role.WEIGHT, Role.TITLE)


@dataclass(frozen=True, slots=True)
class Decision:
    """
    name         ours for the column; empty if it is ignored
    rule_role    of a rule, and of a column that is left out but could be one: attribute or set
    """

    column: str
    role: Role
    name: str
    reason: str
    facts: ColumnFacts
    rule_role: Role | None = None

    @property
    def is_text_entity(self) -> bool:
        facts = self.facts
        return self.role is Role.ENTITY and (facts.kind is Kind.TEXT or facts.typed_text)

    @property
    def looks_like_rule(self) -> bool:
        """Return whether a build would take the column for an undeclared rule."""
        return self.facts.nested or self.column.endswith(EXCLUDE_SUFFIX)


def decide(
    facts: Mapping[str, ColumnFacts], id_column: str, rows: int, users: Sequence[UserColumn]
) -> list[Decision]:
    """Return a decision for every column, in the table's order.

    `users` are the columns of the log that may say who its users are.
    """
    chosen = _Choice(facts, rows, users)
    chosen.take(id_column, Role.ID, "ad_id", f"{rows:,} different values, one per row")
    if not chosen.sid():
        chosen.embedding()
    chosen.weight()
    chosen.title()
    chosen.excludes()
    for column in sorted(facts, key=lambda column: not is_entity(plain_name(column))):
        chosen.other(column)
    chosen.doubt_second_lists()
    chosen.note_values()
    return [chosen.decisions[column] for column in facts]


class _Choice:
    def __init__(
        self, facts: Mapping[str, ColumnFacts], rows: int, users: Sequence[UserColumn]
    ) -> None:
        self._facts = facts
        self._plain = {column: plain_name(column) for column in facts}
        self._rows = rows
        self._users = users
        self._names = names.NewNames(facts.keys())
        self.decisions: dict[str, Decision] = {}

    def take(
        self, column: str, role: Role, name: str, reason: str, rule_role: Role | None = None
    ) -> None:
        facts = self._facts[column]
        if role in LIMITING:
            blanks = column != column.strip()
            reason += facts.padded + f"; its name has blanks around it: {column!r}" * blanks
        self.decisions[column] = Decision(column, role, name, reason, facts, rule_role)

    def _named(self, usual: tuple[str, ...]) -> list[str]:
        """Return the undecided columns of these names, in their order."""
        free = [each for each in self._facts if each not in self.decisions]
        return [each for name in usual for each in free if self._plain[each] == name]

    def sid(self) -> bool:
        for column in self._named(names.SID_NAMES):
            facts = self._facts[column]
            if (
                facts.kind in (Kind.LISTS, Kind.TEXT)
                and facts.holds_integers
                and facts.most_per_row > 1
            ):
                self.take(column, Role.SID, "sid", f"lists of {facts.most_per_row} tokens")
                return True
        if "sid" in self._facts and "sid" not in self.decisions:
            raise InputError(
                "column 'sid': a build reads Semantic IDs from it, lists of integers, but it holds "
                f"{self._facts['sid'].kind.value}; rename it"
            )
        return False

    def embedding(self) -> None:
        lists = [each for each in self._facts.values() if len(each.dims) == 1]
        named = [each for each in lists if words(self._plain[each.name]) & names.VECTOR_WORDS]
        long = [each for each in lists if max(each.dims) >= _LEAST_DIMS]
        for facts in [*named, *long][:1]:
            reason = f"lists of {max(facts.dims)} floats, of which `grace sids` makes SIDs"
            self.take(facts.name, Role.EMBEDDING, "", reason)

    def weight(self) -> None:
        for column in sorted(self._facts, key=lambda column: weight_rank(self._plain[column])):
            facts = self._facts[column]
            if (
                column not in self.decisions
                and weight_rank(self._plain[column]) < np.inf
                and facts.kind in (Kind.NUMBER, Kind.INTEGER)
                and not (facts.nested or facts.typed_text)
                and not facts.faulty
                and np.isfinite([facts.least, facts.most]).all()
            ):
                reason = (
                    f"numbers, {facts.least:.3g} to {facts.most:.3g}: among ads of equal score, "
                    "the largest comes first; if that is wrong, delete the line from tables.yaml"
                )
                self.take(column, Role.WEIGHT, "ad_weight", reason)
                return
        ours = self._facts.get("ad_weight")
        if ours is not None and ours.kind is not Kind.EMPTY:
            raise InputError(
                f"column 'ad_weight': a build reads finite numbers from it, but it holds "
                f"{ours.kind.value}{' and NaN' if ours.faulty else ''}; correct it, or rename it"
            )

    def title(self) -> None:
        named = (column for column, plain in self._plain.items() if names.is_title(plain))
        own = [column for column in named if self._has_own_texts(self._facts[column])]
        for column in [*self._named(names.TITLE_NAMES), *own]:
            if column not in self.decisions and self._facts[column].kind is Kind.TEXT:
                self.take(column, Role.TITLE, "title", "texts: `grace retrieve` shows them")
                return

    def excludes(self) -> None:
        """Find the columns of excluded values, and those of included values that belong to them."""
        for column, plain in self._plain.items():
            base = excluded_by(plain)
            facts = self._facts[column]
            if base is None or column in self.decisions or not facts.may_be_rule:
                continue
            bound = facts.kind is Kind.INTEGER and words(plain) & names.BOUND_WORDS
            if bound or (facts.are_flags and not column.endswith(EXCLUDE_SUFFIX)):
                continue
            others = {
                other: name
                for other, name in self._plain.items()
                if other not in self.decisions
                and not (names.is_negative(name) or is_entity(name))
                and (names_users(name) or not names.is_about_ads(name))
                and self._facts[other].may_be_rule
            }
            include = base_column(base, others)
            stated = names.excludes_users(plain) or column.endswith(EXCLUDE_SUFFIX)
            if include is None and not stated:
                continue
            self._pair(singular(base) if include is None else self._plain[include], include, column)

    def _pair(self, plain: str, include: str | None, exclude: str) -> None:
        named = (exclude,) if include is None else (include, exclude)
        name = self._names.name_of(rule_name(plain), *named)
        if include is None:  # users have other values, too, which an attribute would have to list
            shown = self._facts[exclude].shown_values
            reason = f"{shown} that ads exclude, and users may have others: a set"
            self.take(exclude, Role.EXCLUDE, name + EXCLUDE_SUFFIX, reason, Role.SET)
            return
        role, reason = self._rule(plain, self._facts[include], self._facts[exclude])
        self.take(include, role, name, reason, role)
        shown = self._facts[exclude].shown_values
        self.take(exclude, Role.EXCLUDE, name + EXCLUDE_SUFFIX, f"{shown} that {name} excludes")

    def other(self, column: str) -> None:
        if column in self.decisions:
            return
        facts, plain = self._facts[column], self._plain[column]
        if (reason := self._entity(facts, plain)) is not None:
            self.take(column, Role.ENTITY, self._names.name_of(plain, column), reason)
            return
        named = names_users(plain)
        seen, user = "", best_user(self._users, facts)
        if user is not None and user.shows_users_of(facts):
            other = user.rank(facts) == 2 and plain_name(user.column) in self._plain.values()
            seen = "" if other else f"; the log's users have such values ({user.column})"
        fault = self._no_rule(facts, plain) if column else _UNNAMED
        lost = named or seen or (facts.nested and facts.kind is Kind.EMPTY)
        if fault is not None and not (lost and facts.may_be_rule and facts.values):
            self.take(column, Role.LEFT_OUT if lost else Role.IGNORED, "", fault)
            return
        negative = names.is_negative(plain)
        name = self._names.name_of(rule_name(plain), *[column][negative:])
        role, reason = self._rule(plain, facts, facts)
        if negative:
            name, role = name + EXCLUDE_SUFFIX, Role.SET
        elif fault is None and (named or seen):
            self.take(column, role, name, reason if named else reason + seen, role)
            return
        reason = f"{facts.shown_values}: {_DESCRIBES}" if fault is None else fault + seen
        self.take(column, Role.LEFT_OUT, name, reason, role)

    def doubt_second_lists(self) -> None:
        """Add whose exclude list a rule may be, by its values: its name may hide it."""
        stated = [each for each in self.decisions.values() if each.role is not Role.EXCLUDE]
        rules = [each for each in stated if each.rule_role and not each.facts.are_flags]
        for one, other in permutations([each for each in rules if len(each.facts.values) > 1], 2):
            values, others = one.facts.values, other.facts.values
            first = values == others and rules.index(one) < rules.index(other)
            if values <= others and not first and self.decisions[one.column] is one:
                doubt = (
                    f"; {other.name} has all these values, too: if ads exclude them, "
                    f"rename it to {other.name}{EXCLUDE_SUFFIX}"
                )
                self.decisions[one.column] = replace(one, reason=one.reason + doubt)

    def note_values(self) -> None:
        """Note the values of a rule that a build takes in another way than people may mean them."""
        for rule in [each for each in self.decisions.values() if each.role in LIMITING]:
            name = rule.name.removesuffix(EXCLUDE_SUFFIX)
            alike: dict[str, set[str]] = {}
            for each in self.decisions.values():
                if each.name in (name, name + EXCLUDE_SUFFIX):
                    for value in each.facts.values:
                        alike.setdefault(value.casefold(), set()).add(value)
            reason = rule.reason
            for key in sorted(names.EVERYBODY & alike.keys()):
                shown = min(alike[key])
                reason += f"; {shown!r} is a value like others: an empty cell means everybody"
            groups = [alike[key] for key in sorted(alike) if len(alike[key]) > 1]
            if groups:
                shown = " and ".join(map(repr, sorted(groups[0])[:2]))
                more = f" (and {len(groups) - 1:,} more such)" if len(groups) > 1 else ""
                reason += f"; {shown}{more} differ only in case: they are different values"
            self.decisions[rule.column] = replace(rule, reason=reason)

    def _entity(self, facts: ColumnFacts, plain: str) -> str | None:
        named, is_text = is_entity(plain), facts.kind is Kind.TEXT or facts.typed_text
        if is_text:
            fits = named and facts.kind in (Kind.TEXT, Kind.INTEGER)
        else:
            named = named or (plain.endswith("_id") and not names_users(plain))
            fits = named and facts.kind is Kind.INTEGER and facts.least >= 0
        taken = sum(each.role is Role.ENTITY for each in self.decisions.values())
        if not fits or facts.nested or facts.most_per_row > 1 or taken == MAX_ENTITIES:
            return None
        if facts.given <= len(facts.values):
            return None
        kind = "texts" if is_text else "integers"
        return f"{kind}, {facts.shown_values} in {facts.given:,} rows: stops and limits ads by it"

    def _no_rule(self, facts: ColumnFacts, plain: str) -> str | None:
        """Return why the values of a column are no rule; None if they may be one."""
        named = words(plain)
        if facts.kind is Kind.EMPTY and (named & names.PROSE_WORDS or not names_users(plain)):
            return "no value in any row"
        if weight_rank(plain) < np.inf and facts.typed_text and facts.kind is not Kind.TEXT:
            return f"{facts.kind.value} as text: cast the column to numbers to use it"
        if facts.kind is Kind.NUMBER:
            return "numbers: no rule compares numbers; list the users' values that may see the ad"
        if not facts.may_be_rule:
            return f"{facts.kind.value}: a rule lists values, as texts or integers"
        if named & names.PROSE_WORDS:
            return f"{facts.shown_values}: describes the ad, by its name"
        if facts.nested:
            return None
        if facts.are_flags and not named & names.LETTERED_WORDS:
            return "yes or no: a fact about the ad; a rule names values of users"
        if facts.kind is Kind.INTEGER and (
            words(stem(plain)) & names.BOUND_WORDS or not named & names.CODE_WORDS
        ):
            number = "integers" + ("" if is_entity(plain) else f", {facts.shown_values}")
            return f"{number}: no rule compares numbers; codes that users have may be a rule"
        if facts.longest > _LONGEST_VALUE:
            return f"texts of up to {facts.longest:,} characters: prose"
        if "state" in named and names.AD_STATES & {*map(str.casefold, facts.values)}:
            return f"{facts.shown_values}: a state of the ad, not a place of users"
        if self._has_own_texts(facts) and facts.given > _FEW_ROWS and not names_users(plain):
            return f"{facts.shown_values} in {facts.given:,} rows: nearly every row has its own"
        return None

    def _has_own_texts(self, facts: ColumnFacts) -> bool:
        return len(facts.values) > _OWN_TEXTS * facts.counted and facts.most_per_row == 1

    def _rule(self, plain: str, facts: ColumnFacts, exclude: ColumnFacts) -> tuple[Role, str]:
        values = len(facts.values | exclude.values)
        more = "over " if facts.many or exclude.many else ""
        shown = f"{more}{values:,} value{'s' if values != 1 else ''} in {self._rows:,} rows"
        if faulty := facts.faulty + (0 if exclude is facts else exclude.faulty):
            shown += f" (and {faulty:,} that no rule can name, such as an empty text or *)"
        if words(plain) & names.SEVERAL_WORDS:
            return Role.SET, f"{shown}, of which a user may have several: a set"
        if (user := best_user(self._users, facts)) is not None and user.several:
            return Role.SET, f"{shown}, of which users of the log have several: a set"
        if are_paths(facts.values | exclude.values):
            return Role.SET, f"{shown}, paths of which a user may have several: a set"
        if not values:
            return Role.SET, "no value in any row: build with --without until it has some"
        if more or values > MOST_ATTRIBUTE_VALUES:
            return Role.SET, f"{shown}, more than {MOST_ATTRIBUTE_VALUES}: a set"
        return Role.ATTRIBUTE, f"{shown}: an attribute"
