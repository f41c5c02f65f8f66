"""Decide on the role of each column of an ads table, with a reason.

The id, the SID, the weight and the title are found by their names and values. Every other column
is an entity, a rule (an attribute or a set), left out or ignored. A column that could be a rule is
one if its name says so. Otherwise it is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite

from grace.index.proposal import names
from grace.index.proposal.facts import ColumnFacts, Kind, are_paths, shown_count
from grace.index.targeting.schema import EXCLUDE_SUFFIX, MAX_ENTITIES

MOST_ATTRIBUTE_VALUES = 64
_MAY_EXCLUDE = "the name may say who may not see the ad: if so, call it NAME_exclude in tables.yaml"
_LONGEST_VALUE = 100  # characters; longer ones are prose


class Role(StrEnum):
    ID = "ad_id"
    SID = "sid"
    WEIGHT = "ad_weight"
    TITLE = "title"
    ENTITY = "entity"
    ATTRIBUTE = "attribute"
    SET = "set"
    EXCLUDE = "exclude list"
    LEFT_OUT = "left out"
    IGNORED = "ignored"


RULES = (Role.ATTRIBUTE, Role.SET)
LIMITING = (*RULES, Role.EXCLUDE)
UNREAD = (Role.LEFT_OUT, Role.IGNORED)
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
    def rule(self) -> str:
        """The rule whose values the column lists, included or excluded ones."""
        return self.name.removesuffix(EXCLUDE_SUFFIX)

    @property
    def is_text_entity(self) -> bool:
        return self.role is Role.ENTITY and self.facts.is_text

    @property
    def looks_like_rule(self) -> bool:
        """Return whether a build would take the column for an undeclared rule."""
        return self.facts.nested or self.column.endswith(EXCLUDE_SUFFIX)


def decide(facts: Mapping[str, ColumnFacts], id_column: str, rows: int) -> list[Decision]:
    """Return a decision for every column, in the table's order."""
    chosen = _Choice(facts, rows)
    reason = f"{rows:,} different values, one per row"
    chosen.take(facts[id_column], Role.ID, "ad_id", reason)
    chosen.sid()
    chosen.weight()
    chosen.title()
    for each in facts.values():
        chosen.exclude_list(each)
    for each in sorted(facts.values(), key=lambda each: not names.is_entity(each.plain)):
        chosen.other(each)
    return [chosen.decisions[column] for column in facts]


def values_of(rule: Decision, decisions: Iterable[Decision]) -> set[str]:
    """Return the values of a rule's column and of the one that it excludes by."""
    return set().union(*(each.facts.values for each in decisions if each.rule == rule.rule))


class _Choice:
    def __init__(self, facts: Mapping[str, ColumnFacts], rows: int) -> None:
        self._facts = facts
        self._rows = rows
        self._names = names.NewNames(facts.keys())
        self.decisions: dict[str, Decision] = {}

    def take(
        self, facts: ColumnFacts, role: Role, name: str, reason: str, rule_role: Role | None = None
    ) -> None:
        self.decisions[facts.name] = Decision(facts.name, role, name, reason, facts, rule_role)

    def _free(self) -> list[ColumnFacts]:
        return [each for name, each in self._facts.items() if name not in self.decisions]

    def _named(self, usual: Sequence[str]) -> list[ColumnFacts]:
        """Return the undecided columns of these names, in their order."""
        return [each for name in usual for each in self._free() if each.plain == name]

    def sid(self) -> None:
        for facts in self._named(names.SID_NAMES):
            lists = facts.kind in (Kind.LISTS, Kind.TEXT) and facts.most_per_row > 1
            if lists and facts.holds_integers:
                self.take(facts, Role.SID, "sid", f"lists of {facts.most_per_row} tokens")
                return

    def weight(self) -> None:
        for facts in sorted(self._free(), key=lambda facts: names.weight_rank(facts.plain)):
            numbers = facts.kind in (Kind.NUMBER, Kind.INTEGER) and not facts.typed_text
            finite = isfinite(facts.least) and isfinite(facts.most)
            if names.weight_rank(facts.plain) < inf and numbers and finite and not facts.nested:
                reason = (
                    f"numbers, {facts.least:.3g} to {facts.most:.3g}: among ads of equal score, "
                    "the largest comes first; if that is wrong, delete the line from tables.yaml"
                )
                self.take(facts, Role.WEIGHT, "ad_weight", reason)
                return

    def title(self) -> None:
        named = [each for each in self._free() if names.is_title(each.plain)]
        for facts in [*self._named(names.TITLE_NAMES), *named]:
            if facts.kind is Kind.TEXT:
                self.take(facts, Role.TITLE, "title", "texts: `grace retrieve` shows them")
                return

    def exclude_list(self, facts: ColumnFacts) -> None:
        """Take a column of excluded values, and that of the included values that belongs to it."""
        base, suffixed = names.excluded_by(facts.plain), facts.name.endswith(EXCLUDE_SUFFIX)
        if base is None or facts.name in self.decisions or not facts.may_be_rule:
            return
        others = {
            each.name: each.plain
            for each in self._free()
            if each.may_be_rule
            and not (names.excluded_by(each.plain) or names.is_entity(each.plain))
        }
        found = names.base_column(base, others)
        if found is None:
            # Users have other values, too, which an attribute would have to list.
            name = self._names.name_of(names.rule_name(names.singular(base)), facts.name)
            is_rule = suffixed or (names.limits_users(base) and not names.may_exclude(base))
            reason = f"{facts.shown_values} that ads exclude, and users may have others: a set"
            role = Role.EXCLUDE if is_rule else Role.LEFT_OUT
            self.take(facts, role, name + EXCLUDE_SUFFIX, reason, Role.SET)
            return
        include = self._facts[found]
        name = self._names.name_of(names.rule_name(include.plain), found, facts.name)
        role, reason = self._rule(include, include.values | facts.values)
        self.take(include, role, name, reason, role)
        reason = f"{facts.shown_values} that {name} excludes"
        self.take(facts, Role.EXCLUDE, name + EXCLUDE_SUFFIX, reason)

    def other(self, facts: ColumnFacts) -> None:
        """Take a column as an entity or a rule, leave it out, or ignore it."""
        if facts.name in self.decisions:
            return
        if (reason := self._entity(facts)) is not None:
            name = self._names.name_of(facts.plain, facts.name)
            self.take(facts, Role.ENTITY, name, reason)
            return
        named, fault = names.limits_users(facts.plain), _no_rule(facts)
        doubtful = facts.may_be_rule and names.may_exclude(facts.plain)
        if doubtful or (fault and not (named and facts.may_be_rule and facts.values)):
            left_out = named or doubtful or (facts.nested and facts.kind is Kind.EMPTY)
            reason = fault or f"{facts.shown_values}: {_MAY_EXCLUDE}"
            self.take(facts, Role.LEFT_OUT if left_out else Role.IGNORED, "", reason)
            return
        name = self._names.name_of(names.rule_name(facts.plain), facts.name)
        role, reason = self._rule(facts, facts.values)
        if fault is None and named:
            self.take(facts, role, name, reason, role)
            return
        why = f"{facts.shown_values}: the name does not say that it limits who may see the ad"
        self.take(facts, Role.LEFT_OUT, name, fault or why, role)

    def _entity(self, facts: ColumnFacts) -> str | None:
        plain = facts.plain
        if facts.is_text:
            fits = names.is_entity(plain) and facts.kind in (Kind.TEXT, Kind.INTEGER)
        else:
            own = plain.endswith("_id") and not names.limits_users(plain)
            fits = (own or names.is_entity(plain)) and facts.are_integer_ids
        taken = sum(each.role is Role.ENTITY for each in self.decisions.values())
        repeat = facts.most_per_row == 1 and facts.given > len(facts.values)
        if not (fits and repeat) or facts.nested or taken == MAX_ENTITIES:
            return None
        kind = "texts" if facts.is_text else "integers"
        return f"{kind}, {facts.shown_values} in {facts.given:,} rows: stops and limits ads by it"

    def _rule(self, facts: ColumnFacts, values: set[str]) -> tuple[Role, str]:
        shown = f"{shown_count(len(values), more=facts.many)} in {self._rows:,} rows"
        if facts.words & names.WORDS["several"]:
            return Role.SET, f"{shown}, of which a user may have several: a set"
        if are_paths(values):
            return Role.SET, f"{shown}, paths of which a user may have several: a set"
        if not values:
            return Role.SET, "no value in any row: build with --without until it has some"
        if len(values) > MOST_ATTRIBUTE_VALUES:
            return Role.SET, f"{shown}, more than {MOST_ATTRIBUTE_VALUES}: a set"
        return Role.ATTRIBUTE, f"{shown}: an attribute"


def _no_rule(facts: ColumnFacts) -> str | None:
    """Return why the values of a column are no rule; None if they may be one."""
    if not facts.name:
        return "the column has no name, so a build cannot read it: give it one"
    if facts.kind is Kind.EMPTY and not names.limits_users(facts.plain):
        return facts.kind.value
    if not facts.may_be_rule:
        return f"{facts.kind.value}: a rule lists values, as texts or integers"
    if facts.words & names.WORDS["prose"]:
        return f"{facts.shown_values}: describes the ad, by its name"
    if facts.nested or not facts.values:
        return None
    if facts.are_flags:
        return "yes or no: a fact about the ad; a rule names values of users"
    if facts.kind is Kind.INTEGER and not facts.words & names.WORDS["user_codes"]:
        return "integers: no rule compares numbers; codes that users have may be a rule"
    if "state" in facts.words and names.WORDS["ad_states"] & {*map(str.casefold, facts.values)}:
        return f"{facts.shown_values}: a state of the ad, not a place of users"
    longest = max(map(len, facts.values))
    return f"texts of up to {longest:,} characters: prose" if longest > _LONGEST_VALUE else None
