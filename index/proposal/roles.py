"""Decide on the role of each column of an ads table, with a reason.

The id, the SID, the weight and the title are found by name and by what their values are. Every
other column is an entity, a rule (an attribute or a set) or ignored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from grace.configs.errors import InputError
from grace.index.proposal.facts import ColumnFacts, Kind
from grace.index.proposal.names import (
    BOUND_WORDS,
    CODE_WORDS,
    DESCRIBING_WORDS,
    ENTITY_WORDS,
    SEVERAL_WORDS,
    SID_NAMES,
    TITLE_NAMES,
    USER_WORDS,
    WEIGHT_NAMES,
    NewNames,
    base_column,
    excluded_by,
    is_bid,
    plain_name,
    singular,
    words,
)
from grace.index.targeting.schema import EXCLUDE_SUFFIX, MAX_ENTITIES

MOST_ATTRIBUTE_VALUES = 64
_LONGEST_VALUE = 100  # characters; longer ones are prose
_OWN_TEXTS = 0.8  # distinct values by rows with a value, from which on a column is no rule
_FEW_ROWS = 20


class Role(StrEnum):
    ID = "ad_id"
    SID = "sid"
    WEIGHT = "ad_weight"
    TITLE = "title"
    ENTITY = "entity"
    ATTRIBUTE = "attribute"
    SET = "set"
    EXCLUDE = "exclude list"
    IGNORED = "ignored"


RULES = (Role.ATTRIBUTE, Role.SET)
NAMED_BY_ROLE = (Role.ID, Role.SID, Role.WEIGHT, Role.TITLE)


@dataclass(frozen=True, slots=True)
class Decision:
    """
    name         ours for the column; empty if it is ignored
    rule_role    of a rule: attribute or set
    """

    column: str
    role: Role
    name: str
    reason: str
    facts: ColumnFacts
    rule_role: Role | None = None

    @property
    def looks_like_rule(self) -> bool:
        """Return whether a build would take the column for an undeclared rule."""
        return self.facts.nested or self.column.endswith(EXCLUDE_SUFFIX)


def decide(facts: Mapping[str, ColumnFacts], id_column: str, rows: int) -> list[Decision]:
    """Return a decision for every column, in the table's order."""
    chosen = _Choice(facts, rows)
    chosen.take(id_column, Role.ID, "ad_id", f"{rows:,} different values, one per row")
    chosen.sid()
    chosen.weight()
    chosen.title()
    chosen.excludes()
    for column in facts:
        chosen.other(column)
    chosen.doubt_second_lists()
    chosen.note_cases()
    return [chosen.decisions[column] for column in facts]


class _Choice:
    def __init__(self, facts: Mapping[str, ColumnFacts], rows: int) -> None:
        self._facts = facts
        self._plain = {column: plain_name(column) for column in facts}
        self._rows = rows
        self._names = NewNames(facts.keys())
        bids = (plain for plain in self._plain.values() if is_bid(plain))
        self._weight_names = (*WEIGHT_NAMES, *bids)
        self.decisions: dict[str, Decision] = {}

    def take(
        self, column: str, role: Role, name: str, reason: str, rule_role: Role | None = None
    ) -> None:
        facts = self._facts[column]
        self.decisions[column] = Decision(column, role, name, reason, facts, rule_role)

    def _free(self, names: tuple[str, ...], *kinds: Kind) -> Iterator[str]:
        """Yield undecided columns of these kinds, in the order of the names."""
        for name in names:
            for column, plain in self._plain.items():
                kind = self._facts[column].kind
                if plain == name and column not in self.decisions and kind in kinds:
                    yield column

    def sid(self) -> None:
        for column in self._free(SID_NAMES, Kind.LISTS, Kind.TEXT):
            facts = self._facts[column]
            if facts.holds_integers and facts.most_per_row > 1:
                self.take(column, Role.SID, "sid", f"lists of {facts.most_per_row} tokens")
                return
        if "sid" in self._facts and "sid" not in self.decisions:
            raise InputError(
                "column 'sid': a build reads Semantic IDs from it, lists of integers, but it holds "
                f"{self._facts['sid'].kind.value}; rename it"
            )

    def weight(self) -> None:
        for column in self._free(self._weight_names, Kind.NUMBER, Kind.INTEGER):
            facts = self._facts[column]
            if (
                not (facts.nested or facts.typed_text)
                and not facts.faulty
                and np.isfinite([facts.least, facts.most]).all()
            ):
                reason = (
                    f"numbers, {facts.least:.3g} to {facts.most:.3g}: among ads of equal score, "
                    "the largest comes first; if that is wrong, delete the line from tables.yaml"
                )
                self.take(column, Role.WEIGHT, "ad_weight", reason)
                return
        named = self._facts.get("ad_weight")
        if named is not None and named.kind is not Kind.EMPTY:
            raise InputError(
                f"column 'ad_weight': a build reads finite numbers from it, but it holds "
                f"{named.kind.value}{' and NaN' if named.faulty else ''}; correct it, or rename it"
            )

    def title(self) -> None:
        for column in self._free(TITLE_NAMES, Kind.TEXT):
            self.take(column, Role.TITLE, "title", "texts: `grace retrieve` shows them")
            return

    def excludes(self) -> None:
        """Find the columns of excluded values, and those of included values that belong to them."""
        for column, plain in self._plain.items():
            base = excluded_by(plain)
            facts = self._facts[column]
            if base is None or column in self.decisions or not facts.may_be_rule:
                continue
            if words(base) & BOUND_WORDS:
                continue
            others = {
                other: name
                for other, name in self._plain.items()
                if other not in self.decisions
                and excluded_by(name) is None
                and self._facts[other].may_be_rule
            }
            include = base_column(base, others)
            stated = facts.values or facts.nested or column.endswith(EXCLUDE_SUFFIX)
            if include is None and not stated:
                continue
            self._pair(singular(base) if include is None else self._plain[include], include, column)

    def _pair(self, plain: str, include: str | None, exclude: str) -> None:
        named = (exclude,) if include is None else (include, exclude)
        name = self._names.name_of(plain, *named)
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
        reason = self._entity(facts, plain)
        if reason is not None:
            self.take(column, Role.ENTITY, self._names.name_of(plain, column), reason)
            return
        ignored = self._number_as_text(facts, plain) or self._ignored(facts, plain)
        if ignored is not None:
            self.take(column, Role.IGNORED, "", ignored)
            return
        role, reason = self._rule(plain, facts, facts)
        self.take(column, role, self._names.name_of(plain, column), reason, role)

    def doubt_second_lists(self) -> None:
        """Add whose exclude list a rule may be, by its values: its name may hide it."""
        rules = [each for each in self.decisions.values() if each.role in RULES]
        for later, one in enumerate(rules):
            for place, other in enumerate(rules):
                values, others = one.facts.values, other.facts.values
                if len(values) < 2 or place == later or not values <= others:
                    continue
                if values == others and place > later:  # doubt the second of two equal ones
                    continue
                doubt = (
                    f"; {other.name} has all these values, too: if ads exclude them, "
                    f"rename it to {other.name}{EXCLUDE_SUFFIX}"
                )
                self.decisions[one.column] = replace(one, reason=one.reason + doubt)
                break

    def note_cases(self) -> None:
        """Note the values of a rule that differ only in case, because a build keeps them apart."""
        for rule in [each for each in self.decisions.values() if each.rule_role is not None]:
            name = rule.name.removesuffix(EXCLUDE_SUFFIX)
            both = (name, name + EXCLUDE_SUFFIX)
            values = (each.facts.values for each in self.decisions.values() if each.name in both)
            alike: dict[str, list[str]] = {}
            for value in sorted(set().union(*values)):
                alike.setdefault(value.casefold(), []).append(value)
            groups = [group for group in alike.values() if len(group) > 1]
            if groups:
                shown = " and ".join(map(repr, groups[0][:2]))
                more = f" (and {len(groups) - 1:,} more such)" if len(groups) > 1 else ""
                note = f"; {shown}{more} differ only in case: they are different values"
                self.decisions[rule.column] = replace(rule, reason=rule.reason + note)

    def _entity(self, facts: ColumnFacts, plain: str) -> str | None:
        named = bool(words(plain) & ENTITY_WORDS) or plain.endswith("_id")
        if not named or facts.kind is not Kind.INTEGER or facts.nested or facts.least < 0:
            return None
        if facts.typed_text:
            return None
        taken = sum(each.role is Role.ENTITY for each in self.decisions.values())
        if facts.given <= len(facts.values) or taken == MAX_ENTITIES:
            return None
        return f"integers, {facts.shown_values} in {facts.given:,} rows: stops and limits ads by it"

    def _number_as_text(self, facts: ColumnFacts, plain: str) -> str | None:
        """Return why a column that a cast would make an entity or the weight is neither."""
        named = words(plain) & ENTITY_WORDS or plain in self._weight_names
        if named and facts.typed_text and facts.kind in (Kind.INTEGER, Kind.NUMBER):
            return f"{facts.kind.value} as text: cast the column to numbers to use it"
        return None

    def _ignored(self, facts: ColumnFacts, plain: str) -> str | None:
        """Return why a column is neither an entity nor a rule; None if it is a rule."""
        named = words(plain)
        if facts.kind is Kind.EMPTY and not facts.nested:
            return "no value in any row"
        if facts.kind is Kind.NUMBER:
            return "numbers: no rule compares numbers; list the values that may see the ad"
        if not facts.may_be_rule:
            return f"{facts.kind.value}: a rule lists values, as texts or integers"
        if facts.nested:
            return None  # lists of values are rules, whatever their name
        if facts.kind is Kind.BOOLEAN:
            return "true or false: a fact about the ad; a rule names values of users"
        if facts.kind is Kind.INTEGER and (named & BOUND_WORDS or not named & CODE_WORDS):
            number = "integers" + ("" if named & ENTITY_WORDS else f", {facts.shown_values}")
            return f"{number}: no rule compares numbers; list the values that may see the ad"
        if named & ENTITY_WORDS:
            return "an entity by its name, but not integers: number them to stop ads by them"
        if facts.longest > _LONGEST_VALUE:
            return f"texts of up to {facts.longest:,} characters: prose"
        if named & DESCRIBING_WORDS:
            return f"{facts.shown_values}: describes the ad; declare it if users have such a value"
        own = len(facts.values) > _OWN_TEXTS * facts.counted and facts.most_per_row == 1
        if own and facts.given > _FEW_ROWS and not named & (USER_WORDS | CODE_WORDS):
            return f"{facts.shown_values} in {facts.given:,} rows: nearly every row has its own"
        return None

    def _rule(self, plain: str, facts: ColumnFacts, exclude: ColumnFacts) -> tuple[Role, str]:
        values = len(facts.values | exclude.values)
        more = "over " if facts.many or exclude.many else ""
        shown = f"{more}{values:,} value{'s' if values != 1 else ''} in {self._rows:,} rows"
        if faulty := facts.faulty + (0 if exclude is facts else exclude.faulty):
            shown += f" (and {faulty:,} that no rule can name, such as an empty text or *)"
        if words(plain) & SEVERAL_WORDS:
            return Role.SET, f"{shown}, of which a user may have several: a set"
        if not values:
            return Role.SET, "no value in any row: build with --without until it has some"
        if more or values > MOST_ATTRIBUTE_VALUES:
            return Role.SET, f"{shown}, more than {MOST_ATTRIBUTE_VALUES}: a set"
        return Role.ATTRIBUTE, f"{shown}: an attribute"
