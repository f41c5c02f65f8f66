"""Decide on the role of each column of an ads table, with a reason.

The id, the SID, the weight and the title are found by their names and values. Every other column
is an entity, a rule (an attribute or a set), left out or ignored. A column that could be a rule is
one if its name or the log says so. Otherwise it is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations
from math import inf, isfinite

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import ColumnFacts, Kind, shown_count
from grace.index.proposal.log import UserColumn, best_user
from grace.index.proposal.names import (
    base_column,
    excluded_by,
    is_entity,
    names_users,
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
    def rule(self) -> str:
        """The rule whose values the column lists, included or excluded ones."""
        return self.name.removesuffix(EXCLUDE_SUFFIX)

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
    reason = f"{rows:,} different values, one per row"
    chosen.take(facts[id_column], Role.ID, "ad_id", reason)
    if not chosen.sid():
        chosen.embedding()
    chosen.weight()
    chosen.title()
    for each in facts.values():
        chosen.exclude_list(each)
    for each in sorted(facts.values(), key=lambda each: not is_entity(each.plain)):
        chosen.other(each)
    chosen.doubt_second_lists()
    chosen.note_values()
    return [chosen.decisions[column] for column in facts]


def values_of(rule: Decision, decisions: Iterable[Decision]) -> set[str]:
    """Return the values of a rule's column and of the one that it excludes by."""
    return set().union(*(each.facts.values for each in decisions if each.rule == rule.rule))


class _Choice:
    def __init__(
        self, facts: Mapping[str, ColumnFacts], rows: int, users: Sequence[UserColumn]
    ) -> None:
        self._facts = facts
        self._rows = rows
        self._users = users
        self._names = names.NewNames(facts.keys())
        self.decisions: dict[str, Decision] = {}

    def take(
        self, facts: ColumnFacts, role: Role, name: str, reason: str, rule_role: Role | None = None
    ) -> None:
        if role in LIMITING:
            blanks = facts.name != facts.name.strip()
            reason += facts.padded + f"; its name has blanks around it: {facts.name!r}" * blanks
        self.decisions[facts.name] = Decision(facts.name, role, name, reason, facts, rule_role)

    def _free(self) -> list[ColumnFacts]:
        return [each for name, each in self._facts.items() if name not in self.decisions]

    def _named(self, usual: Sequence[str]) -> list[ColumnFacts]:
        """Return the undecided columns of these names, in their order."""
        return [each for name in usual for each in self._free() if each.plain == name]

    def sid(self) -> bool:
        for facts in self._named(names.SID_NAMES):
            lists = facts.kind in (Kind.LISTS, Kind.TEXT) and facts.most_per_row > 1
            if lists and facts.holds_integers:
                self.take(facts, Role.SID, "sid", f"lists of {facts.most_per_row} tokens")
                return True
        if "sid" in self._facts and "sid" not in self.decisions:
            raise InputError(
                "column 'sid': a build reads Semantic IDs from it, lists of integers, but it holds "
                f"{self._facts['sid'].kind.value}; rename it"
            )
        return False

    def embedding(self) -> None:
        lists = [each for each in self._facts.values() if len(each.dims) == 1]
        named = [each for each in lists if each.words & names.VECTOR_WORDS]
        long = [each for each in lists if max(each.dims) >= _LEAST_DIMS]
        for facts in [*named, *long][:1]:
            reason = f"lists of {max(facts.dims)} floats, of which `grace sids` makes SIDs"
            self.take(facts, Role.EMBEDDING, "", reason)

    def weight(self) -> None:
        for facts in sorted(self._free(), key=lambda facts: weight_rank(facts.plain)):
            numbers = facts.kind in (Kind.NUMBER, Kind.INTEGER) and not facts.typed_text
            finite = isfinite(facts.least) and isfinite(facts.most) and not facts.faulty
            if weight_rank(facts.plain) < inf and numbers and finite and not facts.nested:
                reason = (
                    f"numbers, {facts.least:.3g} to {facts.most:.3g}: among ads of equal score, "
                    "the largest comes first; if that is wrong, delete the line from tables.yaml"
                )
                self.take(facts, Role.WEIGHT, "ad_weight", reason)
                return
        ours = self._facts.get("ad_weight")
        if ours is not None and ours.kind is not Kind.EMPTY:
            raise InputError(
                f"column 'ad_weight': a build reads finite numbers from it, but it holds "
                f"{ours.kind.value}{' and NaN' if ours.faulty else ''}; correct it, or rename it"
            )

    def title(self) -> None:
        own = [each for each in self._free() if names.is_title(each.plain) and _has_own_texts(each)]
        for facts in [*self._named(names.TITLE_NAMES), *own]:
            if facts.kind is Kind.TEXT:
                self.take(facts, Role.TITLE, "title", "texts: `grace retrieve` shows them")
                return

    def exclude_list(self, facts: ColumnFacts) -> None:
        """Take a column of excluded values, and that of the included values that belongs to it."""
        base, suffixed = excluded_by(facts.plain), facts.name.endswith(EXCLUDE_SUFFIX)
        if base is None or facts.name in self.decisions or not facts.may_be_rule:
            return
        bound = facts.kind is Kind.INTEGER and facts.words & names.BOUND_WORDS
        if bound or (facts.are_flags and not suffixed):
            return
        others = {
            each.name: each.plain
            for each in self._free()
            if each.may_be_rule and names.may_include(each.plain)
        }
        shown, found = facts.shown_values, base_column(base, others)
        if found is not None:
            include = self._facts[found]
            name = self._names.name_of(rule_name(include.plain), found, facts.name)
            role, reason = self._rule(include.plain, include, facts)
            self.take(include, role, name, reason, role)
            reason = f"{shown} that {name} excludes"
            self.take(facts, Role.EXCLUDE, name + EXCLUDE_SUFFIX, reason)
        elif suffixed or names.excludes_users(facts.plain):
            # Users have other values, too, which an attribute would have to list.
            name = self._names.name_of(rule_name(singular(base)), facts.name)
            reason = f"{shown} that ads exclude, and users may have others: a set"
            self.take(facts, Role.EXCLUDE, name + EXCLUDE_SUFFIX, reason, Role.SET)

    def other(self, facts: ColumnFacts) -> None:
        """Take a column as an entity or a rule, leave it out, or ignore it."""
        if facts.name in self.decisions:
            return
        if (reason := self._entity(facts)) is not None:
            name = self._names.name_of(facts.plain, facts.name)
            self.take(facts, Role.ENTITY, name, reason)
            return
        named, seen, fault = names_users(facts.plain), self._seen(facts), _no_rule(facts)
        if not facts.name:
            fault = "the column has no name, so a build cannot read it: give it one"
        lost = named or seen or (facts.nested and facts.kind is Kind.EMPTY)
        if fault is not None and not (lost and facts.may_be_rule and facts.values):
            self.take(facts, Role.LEFT_OUT if lost else Role.IGNORED, "", fault)
            return
        negative = names.is_negative(facts.plain)
        name = self._names.name_of(rule_name(facts.plain), *[facts.name][negative:])
        role, reason = self._rule(facts.plain, facts, facts)
        if negative:
            name, role = name + EXCLUDE_SUFFIX, Role.SET
        elif fault is None and (named or seen):
            self.take(facts, role, name, reason if named else reason + seen, role)
            return
        reason = f"{facts.shown_values}: {_DESCRIBES}" if fault is None else fault + seen
        self.take(facts, Role.LEFT_OUT, name, reason, role)

    def _seen(self, facts: ColumnFacts) -> str:
        """Return a note on the log's column whose users have such values; empty if none has."""
        user = best_user(self._users, facts)
        if user is None or not user.shows_users_of(facts):
            return ""
        plain = {each.plain for each in self._facts.values()}
        of_another = user.rank(facts) == 2 and user.facts.plain in plain
        return "" if of_another else f"; the log's users have such values ({user.facts.name})"

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
            alike: dict[str, set[str]] = {}
            for value in values_of(rule, self.decisions.values()):
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

    def _entity(self, facts: ColumnFacts) -> str | None:
        plain, is_text = facts.plain, facts.kind is Kind.TEXT or facts.typed_text
        if is_text:
            fits = is_entity(plain) and facts.kind in (Kind.TEXT, Kind.INTEGER)
        else:
            named = is_entity(plain) or (plain.endswith("_id") and not names_users(plain))
            fits = named and facts.kind is Kind.INTEGER and facts.least >= 0
        taken = sum(each.role is Role.ENTITY for each in self.decisions.values())
        if not fits or facts.nested or facts.most_per_row > 1 or taken == MAX_ENTITIES:
            return None
        if facts.given <= len(facts.values):
            return None
        kind = "texts" if is_text else "integers"
        return f"{kind}, {facts.shown_values} in {facts.given:,} rows: stops and limits ads by it"

    def _rule(self, plain: str, facts: ColumnFacts, exclude: ColumnFacts) -> tuple[Role, str]:
        values, many = facts.values | exclude.values, facts.many or exclude.many
        shown = f"{shown_count(len(values), more=many)} in {self._rows:,} rows"
        if faulty := facts.faulty + (0 if exclude is facts else exclude.faulty):
            shown += f" (and {faulty:,} that no rule can name, such as an empty text or *)"
        if words(plain) & names.SEVERAL_WORDS:
            return Role.SET, f"{shown}, of which a user may have several: a set"
        if (user := best_user(self._users, facts)) is not None and user.facts.most_per_row > 1:
            return Role.SET, f"{shown}, of which users of the log have several: a set"
        if are_paths(values):
            return Role.SET, f"{shown}, paths of which a user may have several: a set"
        if not values:
            return Role.SET, "no value in any row: build with --without until it has some"
        if many or len(values) > MOST_ATTRIBUTE_VALUES:
            return Role.SET, f"{shown}, more than {MOST_ATTRIBUTE_VALUES}: a set"
        return Role.ATTRIBUTE, f"{shown}: an attribute"


def _has_own_texts(facts: ColumnFacts) -> bool:
    return len(facts.values) > _OWN_TEXTS * facts.counted and facts.most_per_row == 1


def _no_rule(facts: ColumnFacts) -> str | None:
    """Return why the values of a column are no rule; None if they may be one."""
    plain, named, shown = facts.plain, facts.words, facts.shown_values
    if facts.kind is Kind.EMPTY and (named & names.PROSE_WORDS or not names_users(plain)):
        return "no value in any row"
    if weight_rank(plain) < inf and facts.typed_text and facts.kind is not Kind.TEXT:
        return f"{facts.kind.value} as text: cast the column to numbers to use it"
    if facts.kind is Kind.NUMBER:
        return "numbers: no rule compares numbers; list the users' values that may see the ad"
    if not facts.may_be_rule:
        return f"{facts.kind.value}: a rule lists values, as texts or integers"
    if named & names.PROSE_WORDS:
        return f"{shown}: describes the ad, by its name"
    if facts.nested:
        return None
    if facts.are_flags and not named & names.LETTERED_WORDS:
        return "yes or no: a fact about the ad; a rule names values of users"
    bound = words(stem(plain)) & names.BOUND_WORDS
    if facts.kind is Kind.INTEGER and (bound or not named & names.CODE_WORDS):
        number = "integers" + ("" if is_entity(plain) else f", {shown}")
        return f"{number}: no rule compares numbers; codes that users have may be a rule"
    if facts.longest > _LONGEST_VALUE:
        return f"texts of up to {facts.longest:,} characters: prose"
    if "state" in named and names.AD_STATES & {*map(str.casefold, facts.values)}:
        return f"{shown}: a state of the ad, not a place of users"
    if _has_own_texts(facts) and facts.given > _FEW_ROWS and not names_users(plain):
        return f"{shown} in {facts.given:,} rows: nearly every row has its own"
    return None
