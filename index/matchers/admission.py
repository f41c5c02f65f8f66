"""Decode-time admission on the CPU: which child entries may lead to an eligible ad."""

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_void_p

import numpy as np
import numpy.typing as npt

from grace.index.matchers.eligible_nodes import eligible_nodes
from grace.index.matchers.matcher_ids import MatcherIds
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.snapshot import Snapshot
from grace.index.trie import SidTrie
from grace.index.users.user_rows import UserRows
from grace.native.loader import array_in, array_out, declare


class SetMatcher(ctypes.Structure):
    """One set's Bloom rows and queries, as C++ reads them (native/src/admit_children.cpp)."""

    _fields_ = (
        ("matcher", MatcherIds),
        ("table", c_void_p),
        ("star", c_void_p),
        ("offsets", c_void_p),
        ("hashes", c_void_p),
        ("bits", c_uint32),
        ("hashes_per_value", c_uint32),
    )


native_admit_children = declare(
    "grace_admit_children",
    *(c_int32, c_int64, c_int64, array_in(np.int32, 2)),
    *(c_int64, array_in(np.int32), array_in(np.int32)),
    *(c_void_p, array_in(np.uint64, 2), c_int32, array_in(np.uint64, 2)),
    *(c_void_p, c_int32, c_void_p, c_int64),
    *(array_out(np.int32), c_int64, array_out(np.int32), array_out(np.int32)),
)


def admitted_entries(
    snapshot: Snapshot, users: UserRows, request: int, entries: range | None = None
) -> npt.NDArray[np.bool_]:
    """True for each entry of a run whose node is admitted for one request of the batch.

    Entry j leads to node j + 1; without `entries`, all of them. -> bool [len(entries)]
    """
    users.require_encoded_for(snapshot)
    if not 0 <= request < len(users):
        raise ValueError(f"request must be 0..{len(users) - 1}, got {request}")
    run = range(snapshot.trie.num_entries) if entries is None else entries
    if run.step != 1 or run.start < 0 or run.stop > snapshot.trie.num_entries:
        raise ValueError(f"entries must be a run within 0..{snapshot.trie.num_entries}, got {run}")
    if snapshot.exact is not None:
        return eligible_nodes(snapshot, snapshot.exact, users, request)[
            run.start + 1 : run.stop + 1
        ]
    if snapshot.matchers is None:
        return np.ones(len(run), np.bool_)
    bitmask = snapshot.matchers.bitmask
    levels = _id_levels(bitmask, snapshot.trie)
    sets = [
        SetMatcher(
            MatcherIds.of(bloom.rows.index, bloom.rows.offsets, levels),
            *(bloom.rows.table.ctypes.data, bloom.star.ctypes.data),
            *(queries.offsets[request:].ctypes.data, queries.hashes.ctypes.data),
            *(target_set.bloom_bits, target_set.bloom_hashes),
        )
        for target_set, bloom, queries in zip(
            snapshot.schema.sets, snapshot.matchers.blooms, users.sets, strict=True
        )
    ]
    # One beam, on a node whose children are the run. The tokens of children do not matter here, so
    # any array with a number for each entry will do.
    no_tokens = bitmask.index
    found, children = np.empty(2, np.int32), np.empty(len(run), np.int32)
    native_admit_children(
        *(1, 1, 1, np.zeros((1, 1), np.int32)),
        *(1, np.array([run.start, run.stop], np.int32), no_tokens),
        ctypes.byref(MatcherIds.of(bitmask.index, bitmask.offsets, levels)),
        *(bitmask.table, snapshot.schema.words, users.bitmask[request : request + 1]),
        *((SetMatcher * len(sets))(*sets), len(sets), None, 0),
        *(found, len(run), np.empty(len(run), np.int32), children),
    )
    admitted = np.zeros(len(run), np.bool_)
    admitted[children[: found[1]] - 1 - run.start] = True
    return admitted


def _id_levels(rows: NodeMatchers, trie: SidTrie) -> npt.NDArray[np.int64] | None:
    """Return the levels of static k-way; all kinds of matchers have the same widths."""
    return None if rows.level_widths is None else rows.id_levels(trie)
