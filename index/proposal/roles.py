"""Decide on the role of each column of an ads table, with a reason.

The id, the SID, the weight and the title are found by their names and values. Every other column
is an entity, a rule (an attribute, a set, or an end of a range or a flight), a property, left out
or ignored. A column that could be a rule is one if its name says so. It is a property if its name
says what the ad is. Otherwise it is left out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from math import inf, isfinite

from grace.index.proposal import names
from grace.index.proposal.facts import ColumnFacts, Kind, are_paths, shown_count
from grace.index.targeting.schema import (
    CLAUSES,
    CLOCKS,
    EXCLUDE_SUFFIX,
    EXPRESSION,
    MAX_ENTITIES,
    Flight,
    Range,
    TargetSet,
)

MOST_ATTRIBUTE_VALUES = 64
_MAY_EXCLUDE = "the name may say who may not see the ad: if so, call it NAME_exclude in tables.yaml"
_LONGEST_VALUE = 100  # characters; longer ones are prose
_FLAGS = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"0", "1"})
_FEW_ADS = 20  # fewer ads may all have different values of a property
_NOT_NAMED = "the name does not say that it limits who may see the ad"


class Role(StrEnum):
    ID = "ad_id"
    SID = "sid"
    WEIGHT = "ad_weight"
    TITLE = "title"
    ENTITY = "entity"
    ATTRIBUTE = "attribute"
    SET = "set"
    EXCLUDE = "exclude list"
    GROUPS = "groups"
    RANGE = "range"
    FLIGHT = "flight"
    PROPERTY = "property"
    CLAUSES = "clauses"
    LEFT_OUT = "left out"
    IGNORED = "ignored"


RULES = (Role.ATTRIBUTE, Role.SET)
SPANS = {Role.FLIGHT: Flight.columns, Role.RANGE: Range.columns}
LIMITING = (*RULES, Role.EXCLUDE, Role.GROUPS, *SPANS)
_ROLES_OF_SETS = dict(zip(TargetSet.columns, (Role.SET, Role.EXCLUDE, Role.GROUPS), strict=True))
*_, _GROUPS_SUFFIX = _ROLES_OF_SETS
UNREAD = (Role.LEFT_OUT, Role.IGNORED)
NAMED_BY_ROLE = (Role.ID, Role.SID, Role.WEIGHT, Role.TITLE)


@dataclass(frozen=True, slots=True)
class Decision:
    column: str
    role: Role
    name: str  # ours for the column; empty if it is ignored
    reason: str
    facts: ColumnFacts
    # of a rule, and of a column that is left out but could be one: its section's role
    rule_role: Role | None = None

    @property
    def rule(self) -> str:
        """The name in the schema: that of an exclude list, or of an end, without its ending."""
        endings = SPANS.get(self.rule_role or self.role, (EXCLUDE_SUFFIX,))
        endings = (_GROUPS_SUFFIX,) if self.role is Role.GROUPS else endings
        ending = next((each for each in endings if self.name.endswith(each)), "")
        return self.name.removesuffix(ending)


def decide(facts: Mapping[str, ColumnFacts], id_column: str, rows: int) -> list[Decision]:
    """Return a decision for every column, in the table's order."""
    chosen = _Choice(facts, rows)
    reason = f"{rows:,} different values, one per row"
    chosen.take(facts[id_column], Role.ID, "ad_id", reason)
    chosen.clauses()
    chosen.groups()
    chosen.sid()
    chosen.weight()
    chosen.title()
    for role in SPANS:
        chosen.spans(role)
    for each in facts.values():
        chosen.exclude_list(each)
    for each in sorted(facts.values(), key=lambda each: not names.is_entity(each.plain)):
        chosen.other(each)
    return [chosen.decisions[column] for column in facts]


def values_of(rule: Decision, decisions: Iterable[Decision]) -> set[str]:
    """Return the values of a rule's column and of the one that it excludes by."""
    return set().union(*(each.facts.values for each in decisions if each.rule == rule.rule))


def may_limit(column: str, ours: Collection[str]) -> bool:
    """Return whether an ignored column may be meant as a rule, perhaps as one of `ours`."""
    plain = names.plain_name(column)
    ends = [names.end_of(plain, role.value, endings) for role, endings in SPANS.items()]
    excludes = not names.words(plain).isdisjoint(names.WORDS["negative"])
    meant = any(ends) or names.limits_users(plain) or excludes
    return meant or bool(get_close_matches(plain, ours, cutoff=0.8))


class _Choice:
    def __init__(self, facts: Mapping[str, ColumnFacts], rows: int) -> None:
        self._facts = facts
        self._rows = rows
        self._names = names.NewNames(facts.keys())
        self._units: set[str] = set()  # of integers that are times
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

    def clauses(self) -> None:
        reason = "a build reads it as rules; add names that only it uses to targeting.yaml"
        for facts in self._free():
            if names.singular(facts.plain) in (EXPRESSION, names.singular(CLAUSES)):
                ours = CLAUSES if facts.nested else EXPRESSION
                name = facts.name if facts.name in (CLAUSES, EXPRESSION) else ours
                self.take(facts, Role.CLAUSES, name, reason)

    def groups(self) -> None:
        """Take the columns of each set that has groups, which are lists of lists."""
        for facts in self._free():
            base = facts.name.removesuffix(_GROUPS_SUFFIX)
            if base == facts.name or not facts.nested or facts.kind is not Kind.OTHER:
                continue
            ends = {base + end: end for end in TargetSet.columns}
            found = [x for x in self._free() if x.name in ends and (x.may_be_rule or x is facts)]
            name = self._names.name_of(names.plain_name(base), *(each.name for each in found))
            for each in found:
                end, reason = ends[each.name], "of a set with groups: a user needs a value of each"
                self.take(each, _ROLES_OF_SETS[end], name + end, reason, Role.SET)

    def sid(self) -> None:
        for facts in self._named(names.SID_NAMES):
            lists = facts.kind in (Kind.LISTS, Kind.TEXT) and facts.most_per_row > 1
            if lists and facts.values and all(map(str.isdecimal, facts.values)):
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

    def spans(self, role: Role) -> None:
        """Take the ends of ranges, or those of flights: two of the same name, or a single one."""
        found: dict[str, dict[str, ColumnFacts]] = {}
        for facts in self._free():
            end = names.end_of(facts.plain, role.value, SPANS[role])
            if end is not None and (facts.kind is Kind.EMPTY or _span_fault(facts, role) is None):
                base, ending = end
                found.setdefault(base, {}).setdefault(ending, facts)
        for base, ends in found.items():
            sure = _limits(role, base, ends)
            if sure or any(facts.given for facts in ends.values()):
                self._span(role, base, ends, sure=sure)

    def _span(self, role: Role, base: str, ends: Mapping[str, ColumnFacts], *, sure: bool) -> None:
        if role is Role.FLIGHT:
            self._units |= {facts.time_unit for facts in ends.values() if facts.time_unit}
            if len(self._units) > 1:
                reason = f"times in {' and '.join(sorted(self._units))}: a table has one time_unit"
                for facts in ends.values():
                    self.take(facts, Role.LEFT_OUT, "", reason)
                return
            base = "" if names.is_entity(base) else base
        columns = [facts.name for facts in ends.values()]
        name = self._names.name_of(base or role.value, *columns, endings=SPANS[role])
        for ending, facts in ends.items():
            reason = facts.kind.value
            if facts.given and role is Role.RANGE:
                reason += f", {facts.least:.6g} to {facts.most:.6g}"
            reason += f": an end of a {role.value}{'' if sure else f', but {_NOT_NAMED}'}"
            self.take(facts, role if sure else Role.LEFT_OUT, name + ending, reason, role)

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
            role, reason = Role.SET, "that ads exclude, and users may have others: a set"
            if clock_of(facts, facts.values):
                is_rule, role, reason = True, Role.ATTRIBUTE, "that ads exclude, of a clock"
            taken = Role.EXCLUDE if is_rule else Role.LEFT_OUT
            reason = f"{facts.shown_values} {reason}"
            self.take(facts, taken, name + EXCLUDE_SUFFIX, reason, role)
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
        named = names.limits_users(facts.plain) or names.clock_of(facts.plain) is not None
        unfit = _unfit_end(facts)
        fault = unfit or _no_rule(facts)
        listed = facts.may_be_rule or facts.kind is Kind.TIME
        doubtful = unfit is not None or (listed and names.may_exclude(facts.plain))
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
        # The values of single ads do not say what the ad is.
        repeat = facts.most_per_row > 1 or len(facts.values) < max(facts.given, _FEW_ADS)
        if fault is None and names.describes_ad(facts.plain) and repeat:
            reason = (
                f"{facts.shown_values}: what the ad is, by its name; it limits nobody by itself"
            )
            self.take(facts, Role.PROPERTY, name, reason, Role.PROPERTY)
            return
        why = f"{facts.shown_values}: {_NOT_NAMED}"
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
        if clock := clock_of(facts, values):
            return Role.ATTRIBUTE, f"{shown}, from 0; weeks begin on Monday: the clock {clock}"
        if facts.words & names.WORDS["several"]:
            return Role.SET, f"{shown}, of which a user may have several: a set"
        if are_paths(values):
            return Role.SET, f"{shown}, paths of which a user may have several: a set"
        if not values:
            return Role.SET, "no value in any row: build with --without until it has some"
        if len(values) > MOST_ATTRIBUTE_VALUES:
            return Role.SET, f"{shown}, more than {MOST_ATTRIBUTE_VALUES}: a set"
        return Role.ATTRIBUTE, f"{shown}: an attribute"


def clock_of(facts: ColumnFacts, values: set[str]) -> str | None:
    """Return the clock that gives these values, if the column is named for one."""
    clock = names.clock_of(facts.plain)
    return clock if clock and values and values <= {*map(str, range(CLOCKS[clock]))} else None


def _limits(role: Role, base: str, ends: Mapping[str, ColumnFacts]) -> bool:
    """Return whether names of ends say that they limit who may see an ad, or when."""
    if role is Role.RANGE:
        return any(names.limits_users(facts.plain) for facts in ends.values())
    # Without more words, a single start may be that of a concert.
    of_ads = bool(names.words(base) & names.WORDS["flights"])
    return of_ads or (not base and Flight.columns[1] in ends)


def _span_fault(facts: ColumnFacts, role: Role) -> str | None:
    """Return why the values are no ends of ranges, or of flights."""
    if role is Role.FLIGHT:
        if not facts.nested and (facts.kind is Kind.TIME or facts.time_unit):
            return None
        return f"{facts.kind.value}: a flight takes times, or integers since 1970 in one unit"
    if facts.kind not in (Kind.INTEGER, Kind.NUMBER) or facts.nested or facts.typed_text:
        what = "texts" if facts.typed_text else facts.kind.value
        return f"{what}: a range takes numbers"
    finite = isfinite(facts.least) and isfinite(facts.most)
    return None if finite else "NaN or infinity: a range takes finite numbers; no number is open"


def _unfit_end(facts: ColumnFacts) -> str | None:
    """Return why a column that is named like an end of a range or a flight is none."""
    for role, endings in SPANS.items():
        base, ending = names.end_of(facts.plain, role.value, endings) or ("", "")
        lists = facts.kind in (Kind.TEXT, Kind.LISTS) and (role is Role.RANGE or not base)
        lists &= facts.most_per_row > 1 or not any(map(str.isdecimal, facts.values))  # 18, 25+
        if ending and _limits(role, base, {ending: facts}) and not lists:
            return _span_fault(facts, role) or f"another column is this end of the {role.value}"
    return None


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
    if clock := names.clock_of(facts.plain):
        of_clock = f"the clock's are 0 to {CLOCKS[clock] - 1}; weeks begin on Monday"
        return None if clock_of(facts, facts.values) else f"{facts.shown_values}: {of_clock}"
    if facts.nested or not facts.values:
        return None
    if {*map(str.casefold, facts.values)} in _FLAGS:
        return "yes or no: a fact about the ad; a rule names values of users"
    if facts.kind is Kind.INTEGER and not facts.words & names.WORDS["user_codes"]:
        return "integers: a range has names such as NAME_min; codes that users have may be a rule"
    if "state" in facts.words and names.WORDS["ad_states"] & {*map(str.casefold, facts.values)}:
        return f"{facts.shown_values}: a state of the ad, not a place of users"
    longest = max(map(len, facts.values))
    return f"texts of up to {longest:,} characters: prose" if longest > _LONGEST_VALUE else None
