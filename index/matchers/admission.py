"""Decode-time admission on the CPU: which child entries may lead to an eligible ad."""

import ctypes

import numpy as np
import numpy.typing as npt

from grace.index.matchers.matcher_ids import MatcherIds
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.snapshot import Snapshot
from grace.index.trie import SidTrie
from grace.index.users.user_rows import UserRows
from grace.native.loader import array_in, array_out, declare

__all__ = ["admitted_entries"]


class _BloomTest(ctypes.Structure):
    _fields_ = (
        ("matcher", MatcherIds),
        ("table", ctypes.c_void_p),
        ("star", ctypes.c_void_p),
        ("queries", ctypes.c_void_p),
        ("num_queries", ctypes.c_int64),
        ("bits", ctypes.c_uint32),
        ("hashes", ctypes.c_uint32),
    )


_admit_entries = declare(
    "grace_admit_entries",
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    array_in(np.uint64, 2),
    ctypes.c_int32,
    array_in(np.uint64),
    ctypes.c_void_p,
    ctypes.c_int32,
    array_out(np.uint8),
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
    if snapshot.matchers is None:
        return np.ones(len(run), np.bool_)
    levels = _id_levels(snapshot.matchers.bitmask, snapshot.trie)
    tests, keep_alive = [], []
    for target_set, matchers, queries in zip(
        snapshot.schema.sets, snapshot.matchers.blooms, users.sets, strict=True
    ):
        hashes = queries.hashes[queries.offsets[request] : queries.offsets[request + 1]]
        keep_alive.append(hashes)
        tests.append(
            _BloomTest(
                MatcherIds.of(matchers.rows.index, matchers.rows.offsets, levels),
                matchers.rows.table.ctypes.data,
                matchers.star.ctypes.data,
                hashes.ctypes.data,
                len(hashes),
                target_set.bloom_bits,
                target_set.bloom_hashes,
            )
        )
    native_tests = (_BloomTest * len(tests))(*tests)
    bitmask = snapshot.matchers.bitmask
    bitmask_ids = MatcherIds.of(bitmask.index, bitmask.offsets, levels)
    admitted = np.empty(len(run), np.uint8)
    _admit_entries(
        run.start,
        run.stop,
        ctypes.byref(bitmask_ids),
        bitmask.table,
        snapshot.schema.words,
        users.bitmask[request],
        ctypes.cast(native_tests, ctypes.c_void_p),
        len(tests),
        admitted,
    )
    return admitted.astype(np.bool_)


def _id_levels(rows: NodeMatchers, trie: SidTrie) -> npt.NDArray[np.int64] | None:
    """Of static k-way, where all kinds of matchers have the same widths."""
    return None if rows.level_widths is None else rows.id_levels(trie)
