"""Derive what decoding reads from a snapshot's facts, in the mode that the caller chooses."""

from dataclasses import replace

from grace.configs.eligibility import Eligibility, MatcherMode
from grace.index.allocation import Allocate, plain_memory
from grace.index.matchers.exact_lists import exact_lists
from grace.index.matchers.node_rows import row_matchers
from grace.index.snapshot import Snapshot


def derive(
    snapshot: Snapshot, eligibility: Eligibility, threads: int, allocate: Allocate = plain_memory
) -> Snapshot:
    """Return the snapshot in this mode, with the same arrays of facts, whatever `threads` are."""
    eligibility.require_length(snapshot.trie.sid_length)
    matchers, exact = None, None
    if eligibility.mode is MatcherMode.EXACT:
        num_values = tuple(map(len, snapshot.set_values))
        exact = exact_lists(snapshot.ads, snapshot.rules, num_values, threads, allocate)
    elif eligibility.mode is not MatcherMode.CD:
        matchers = row_matchers(snapshot, eligibility.k_way, threads)
    return replace(snapshot, mode=eligibility.mode, matchers=matchers, exact=exact)
