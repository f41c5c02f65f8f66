"""The native table that encodes and deduplicates the ads' rules while they stream in."""

import ctypes
from collections.abc import Sequence
from itertools import chain

import numpy as np

from grace.configs.arrays import Int32, Int64
from grace.index.builder.rule_columns import RuleColumns
from grace.index.forms.component import ListColumn
from grace.index.forms.components import components_of
from grace.index.targeting.rules import Lists, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.native.loader import declare

REFUSED = -2  # the rule of an ad that is not built

_FIRST_ALTERNATIVE = -3  # alternative i is -3 - i

FAULTS = {
    1: "bad value",
    2: "the list is empty, so no user could pass; drop the rule or name values",
    3: "the exclude list leaves nothing of what is included, so no user could pass",
    4: "the range is empty, so no user could pass; raise its end, or lower its start",
}

BLOCK_BITS = 1 << 27  # of the rules that are encoded again at a time, each bit as a byte

_new = declare("grace_rules_new(pointer)")
_free = declare("grace_rules_free(pointer)")
_add = declare("grace_rules_add(pointer, int64, uintp[,], int32, out int32[], out int32[,])")
_sizes = declare("grace_rules_sizes(pointer, out int64[,])")
_join = declare("grace_rules_join(pointer, int64, int64[], int32[], out int32[])")
_take = declare("grace_rules_take(pointer, int64, out int64[], out int32[])")


# The arrays have the layout of the structs in native/src/rules.cpp.
class RuleTable:
    """The distinct rules of the ads read so far, in a native table that `close` frees."""

    def __init__(self, schema: TargetingSchema, threads: int) -> None:
        self._components = components_of(schema)
        self._columns = len(schema.rule_columns)
        self._words = schema.words
        self._threads = threads
        self._handle = ctypes.c_void_p()
        _new(ctypes.byref(self._handle))
        for component in self._components:
            component.add_to_rules(self._handle)

    def close(self) -> None:
        _free(self._handle)
        self._handle = ctypes.c_void_p()

    def add(self, rules: RuleColumns, rule_of: Int32) -> tuple[Int32, Int32]:
        """Return each ad's rule, or a number that `take` replaces, and faults as `add_rows` does.

        rule_of  int32 [ads]: REFUSED for ads to skip. An ad is refused if one of its clauses is
        """
        of_rows = rule_of[rules.ad_of(len(rule_of))]
        faults = self.add_rows(rules.columns, of_rows)
        return (of_rows if rules.offsets is None else self.join(rules.offsets, of_rows)), faults

    def add_rows(self, columns: Sequence[ListColumn | None], rule_of: Int32) -> Int32:
        """Give each row its rule, except rows that are REFUSED on entry.

        columns  of the schema's `rule_columns`; None if the table lacks the column
        rule_of  int32 [rows], written in place
        Returns faults int32 [rows, 2]: the fault and the column of rows that became REFUSED here.
        """
        if len(columns) != self._columns:
            raise ValueError(f"columns must be {self._columns} long, got {len(columns)}")
        addresses = np.array(
            [(0, 0, 0) if each is None else [a.ctypes.data for a in each] for each in columns],
            np.uintp,
        )
        faults = np.zeros((len(rule_of), 2), np.int32)
        _add(self._handle, len(rule_of), addresses.reshape(-1, 3), self._threads, rule_of, faults)
        return faults

    def join(self, offsets: Int64, rule_of: Int32) -> Int32:
        """Return a rule for each ad, whose clauses have rules offsets[i] .. offsets[i + 1]."""
        joined = np.empty(len(offsets) - 1, np.int32)
        _join(self._handle, len(joined), offsets, rule_of, joined)
        return joined

    def add_again(self, rules: TargetingRules) -> tuple[Int32, Int32]:
        """Add rules of a table with the same value ids. Return their numbers here, and faults."""
        rule_of, faults = np.zeros(rules.num_rules, np.int32), []
        size = max(1, BLOCK_BITS // (64 * self._words))
        for begin in range(0, len(rule_of), size):
            block = slice(begin, begin + size)
            rows = zip(self._components, rules.parts, rules.rows[block].T, strict=True)
            columns = [list(component.columns_of(part, ids)) for component, part, ids in rows]
            faults.append(self.add_rows(list(chain.from_iterable(columns)), rule_of[block]))
        offsets, members = rules.alternatives
        joined = self.join(offsets, rule_of[members])
        return np.append(rule_of, joined), np.concatenate(faults)

    def take(self, rule_of: Int32) -> tuple[TargetingRules, Int32]:
        """Return all rules in order of arrival, and the numbers that these ads' rules now have."""
        sizes = np.zeros((2 + len(self._components), 2), np.int64)
        _sizes(self._handle, sizes)
        rules, alternatives, *others = map(self._spans, range(len(sizes)), *sizes.T)
        rows = rules.values.reshape(-1, len(self._components))
        of_components = zip(self._components, others, strict=True)
        parts = tuple(component.rows_of(*spans) for component, spans in of_components)
        alternative = len(rows) + (_FIRST_ALTERNATIVE - rule_of)
        numbers = np.where(rule_of <= _FIRST_ALTERNATIVE, alternative, rule_of).astype(np.int32)
        return TargetingRules(rows, parts, alternatives), numbers

    def _spans(self, which: int, spans: int, num_words: int) -> Lists:
        found = Lists(np.empty(spans + 1, np.int64), np.empty(num_words, np.int32))
        _take(self._handle, which, *found)
        return found
