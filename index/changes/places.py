"""Where the ads of a change are in the trie, or belong, and the trie after the change."""

from collections.abc import Sequence

import numpy as np

from grace.configs.arrays import Bools, Int64, Integers, UInt16
from grace.index.changes.rows import Edit, Editor, Found, Regrouped, bisected, regrouped
from grace.index.snapshot import Snapshot, require_ids
from grace.index.trie import SidTrie


def first_with(tokens: UInt16) -> Bools:
    """Return at each level whether a SID is the first with its prefix. SIDs ascend.   [L + 1, n]"""
    first = np.zeros((tokens.shape[1] + 1, len(tokens)), np.bool_)
    first[:, :1] = True
    first[1:, 1:] = np.logical_or.accumulate(tokens[1:] != tokens[:-1], axis=1).T
    return first


def places_of_ads(snapshot: Snapshot, tokens: UInt16, ad_ids: Int64) -> list[Found]:
    """Find the nodes of each level, the leaf and the ordinal of ads, which are in this order.

    Or return where they belong. A prefix below an absent node belongs where the children of that
    node would be: before those of the node whose place it takes.
    """
    trie, ads = snapshot.trie, snapshot.ads
    nodes = Found(np.zeros(len(ad_ids), np.int64), np.ones(len(ad_ids), np.bool_))
    places = [nodes]
    for of_level in tokens.T:
        entries = _within(trie.node_offsets, nodes, trie.csr_tokens, of_level)
        nodes = Found(entries.at + 1, entries.there)  # child entry j leads to node j + 1
        places.append(nodes)
    leaves = Found(nodes.at - trie.first_leaf, nodes.there)
    return [*places, leaves, _within(ads.ad_offsets, leaves, ads.ad_ids, ad_ids)]


def _within(offsets: Integers, groups: Found, keys: Integers, wanted: Integers) -> Found:
    begins, ends = offsets[groups.at], offsets[groups.at + groups.there]
    return bisected(lambda places: keys[places], begins, ends, wanted)


def edited_trie(
    editor: Editor,
    trie: SidTrie,
    tokens: UInt16,
    first: Bools,
    levels: Sequence[Found],
    gone: Int64,
) -> SidTrie:
    """Add the SIDs of put ads, and remove the leaves that have lost all ads.

    first, levels  what `first_with` and `places_of_ads` return
    """
    removed, counts = gone + trie.first_leaf, [*trie.level_counts]
    entries: list[tuple[Int64, Int64, UInt16]] = []
    nodes: list[Regrouped] = []
    for level in range(trie.sid_length, 0, -1):
        new = first[level] & ~levels[level].there
        counts[level] += int(new.sum()) - len(removed)
        entries.insert(0, (removed - 1, levels[level].at[new] - 1, tokens[new, level - 1]))
        above = Found(*(each[new] for each in levels[level - 1]))
        is_root = level == 1
        parents = regrouped(
            trie.node_offsets, removed - 1, above, first[level - 1, new], stays=is_root
        )
        nodes.insert(0, parents)
        removed = parents.gone
    if counts == [*trie.level_counts] and not len(entries[-1][0]):
        return trie
    require_ids(sum(counts), "trie nodes")
    gone_entries, at, new_tokens = map(np.concatenate, zip(*entries, strict=True))
    edits = [each.edit for each in nodes]
    of_nodes = Edit(
        len(trie.node_offsets) - 1,
        *(np.concatenate(each) for each in zip(*((e.removed, e.at) for e in edits), strict=True)),
    )
    sizes = np.concatenate([each.sizes for each in nodes])
    offsets = editor.offsets(trie.node_offsets, of_nodes, sizes)
    of_entries = Edit(trie.num_entries, gone_entries, at)
    rows = editor.rows(trie.csr_tokens, of_entries, new_tokens)
    return SidTrie(trie.vocab_sizes, tuple(counts), offsets, rows)
