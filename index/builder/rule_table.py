"""The native table that encodes and deduplicates the ads' rules while they stream in."""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from grace.index.builder.columns import ListColumn
from grace.index.builder.sorting import gather_spans
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.native.loader import array_in, array_out, declare

REFUSED = -2
"""The rule of an ad that is not built."""

FAULTS = {
    1: "bad value",
    2: "the include list is empty, so no user could pass; drop the rule or name values",
    3: "the exclude list leaves nothing of what is included, so no user could pass",
}


_new = declare(
    "grace_rules_new",
    *(ctypes.c_int32, array_in(np.int32, 2), ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p),
)
_free = declare("grace_rules_free", ctypes.c_void_p)
_add = declare(
    "grace_rules_add",
    *(ctypes.c_void_p, ctypes.c_int64, array_in(np.uintp, 2), ctypes.c_int32),
    *(array_out(np.int32), array_out(np.int32, 2)),
)
_sizes = declare("grace_rules_sizes", ctypes.c_void_p, array_out(np.int64))
_take = declare(
    "grace_rules_take", ctypes.c_void_p, array_out(np.int32, 2), array_out(np.uint64, 2)
)
_take_set = declare(
    "grace_rules_take_set",
    *(ctypes.c_void_p, ctypes.c_int32, array_out(np.int64), array_out(np.int32)),
)


# The arrays have the layout of the structs in native/src/rules.cpp.
class RuleTable:
    """The distinct rules of the ads read so far, in a native table that `close` frees."""

    def __init__(self, schema: TargetingSchema, threads: int) -> None:
        self._schema = schema
        self._threads = threads
        self._handle = ctypes.c_void_p()
        bits = [
            (first, len(attribute.values), attribute.missing_passes_exclude)
            for attribute, first in zip(schema.attributes, schema.first_bits, strict=True)
        ]
        attributes = np.array(bits, np.int32).reshape(-1, 3)
        _new(
            *(schema.words, attributes, len(attributes), len(schema.sets)),
            ctypes.byref(self._handle),
        )

    def close(self) -> None:
        _free(self._handle)
        self._handle = ctypes.c_void_p()

    def add(
        self, columns: Sequence[ListColumn | None], rule_of: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """Give each row its rule, except rows that are REFUSED on entry.

        columns  include and exclude of every attribute, then of every set; None if the table lacks
                 the column
        rule_of  int32 [rows], written in place
        Returns faults int32 [rows, 2]: the fault and the column of rows that became REFUSED here.
        """
        expected = 2 * (len(self._schema.attributes) + len(self._schema.sets))
        if len(columns) != expected:
            raise ValueError(f"columns must be {expected} long, got {len(columns)}")
        addresses = np.array([_addresses(column) for column in columns], np.uintp)
        faults = np.zeros((len(rule_of), 2), np.int32)
        _add(
            *(self._handle, len(rule_of), addresses.reshape(-1, 3), self._threads),
            *(rule_of, faults),
        )
        return faults

    def take(self) -> TargetingRules:
        """Return all rules; rules, their parts and values are numbered in order of arrival."""
        num_sets = len(self._schema.sets)
        sizes = np.zeros(2 + 2 * num_sets, np.int64)
        _sizes(self._handle, sizes)
        parts = np.empty((sizes[0], 1 + num_sets), np.int32)
        bitmasks = np.empty((sizes[1], self._schema.words), np.uint64)
        _take(self._handle, parts, bitmasks)
        sets = tuple(
            self._take_set(s, *sizes[2 + 2 * s : 4 + 2 * s].tolist()) for s in range(num_sets)
        )
        return TargetingRules(parts[:, 0].copy(), bitmasks, parts[:, 1:].copy(), sets)

    def _take_set(self, s: int, rules: int, num_words: int) -> SetRules:
        """A rule is a span of words: how many values it includes, these, and those it excludes."""
        offsets, words = np.empty(rules + 1, np.int64), np.empty(num_words, np.int32)
        _take_set(self._handle, s, offsets, words)
        begins = offsets[:-1] + 1
        included = words[offsets[:-1]].astype(np.int64)
        excluded = np.diff(offsets) - 1 - included
        return SetRules(
            *gather_spans(words, begins, included),
            *gather_spans(words, begins + included, excluded),
        )


def _addresses(column: ListColumn | None) -> tuple[int, int, int]:
    """Return the addresses of a column's arrays for C++, or zeros if there is no column."""
    if column is None:
        return 0, 0, 0
    return column.offsets.ctypes.data, column.valid.ctypes.data, column.codes.ctypes.data
