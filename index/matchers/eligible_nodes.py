"""Mode `exact` in plain NumPy, for one request: which nodes lead to an ad that the user may see."""

import numpy as np
import numpy.typing as npt

from grace.index.forms.lists import SetQueries
from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserRows

Bools = npt.NDArray[np.bool_]


def eligible_nodes(snapshot: Snapshot, lists: ExactLists, users: UserRows, request: int) -> Bools:
    """Return True for each node below which an ad is eligible.   bool [nodes]

    `lists` are the snapshot's, or a copy with `num_rules` for rules of which all ads are stopped.
    """
    trie, rules = snapshot.trie, snapshot.rules
    mine = users.bitmask[request]
    passes = ((rules.bitmask_table & mine) == mine).all(axis=1)[rules.bitmask]
    for s, (target_set, postings, queries) in enumerate(
        zip(snapshot.schema.sets, lists.postings, users.sets, strict=True)
    ):
        set_passes = _passing_set_rules(
            rules.sets[s].num_rules, postings, queries, request, target_set.missing_passes_exclude
        )
        passes &= set_passes[rules.set_rules[:, s]]
    passes = np.append(passes, False)  # nobody passes the rule of stopped ads
    nodes = np.empty(trie.num_nodes, np.bool_)
    nodes[trie.first_leaf :] = np.logical_or.reduceat(
        passes[lists.leaf_rules], lists.leaf_offsets[:-1]
    )
    for level in range(trie.sid_length - 1, -1, -1):
        begin, end = trie.level_starts[level], trie.level_starts[level + 1]
        children = trie.node_offsets[begin : end + 1]  # child entry j leads to node j + 1
        below = nodes[children[0] + 1 : children[-1] + 1]
        nodes[begin:end] = np.logical_or.reduceat(below, children[:-1] - children[0])
    return nodes


def _passing_set_rules(
    num_rules: int,
    postings: Postings,
    queries: SetQueries,
    request: int,
    missing_passes_exclude: bool,
) -> Bools:
    """Return whether the request passes each set rule.   bool [set rules]"""
    begin, end = queries.value_offsets[request : request + 2]
    values = queries.value_ids[begin:end]
    includes = _named(postings.include_offsets, postings.include_rules, num_rules)
    passes = ~includes | _named(postings.include_offsets, postings.include_rules, num_rules, values)
    has_value = queries.offsets[request + 1] > queries.offsets[request]  # known or not
    if has_value:
        passes &= ~_named(postings.exclude_offsets, postings.exclude_rules, num_rules, values)
    elif not missing_passes_exclude:
        passes &= ~_named(postings.exclude_offsets, postings.exclude_rules, num_rules)
    return passes


def _named(
    offsets: npt.NDArray[np.int64],
    rules: npt.NDArray[np.int32],
    num_rules: int,
    values: npt.NDArray[np.int32] | None = None,
) -> Bools:
    """Return True for each set rule in the lists of these values, or of all.   bool [set rules]"""
    named = np.zeros(num_rules, np.bool_)
    if values is None:
        named[rules] = True
        return named
    for value in values.tolist():
        named[rules[offsets[value] : offsets[value + 1]]] = True
    return named
