"""Where the ads of a change are in the trie, or belong, and the trie after the change."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.changes.rows import (
    Edit,
    Editor,
    Found,
    Int64,
    Mask,
    Regrouped,
    bisected,
    regrouped,
)
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import require_ids
from grace.index.trie import SidTrie

Tokens = npt.NDArray[np.uint16]


class Level(NamedTuple):
    """The prefixes of the put ads at one level, in the order of the ads.

    nodes  their nodes, or the nodes before which they belong
    first  whether an ad is the first one with its prefix
    """

    nodes: Found
    first: Mask

    @property
    def new(self) -> Mask:
        return self.first & ~self.nodes.there


class AdPlaces(NamedTuple):
    levels: tuple[Level, ...]  # 0 .. sid_length
    leaves: Found
    ads: Found  # ordinals


def places_of_ads(trie: SidTrie, ads: SidToAds, tokens: Tokens, ad_ids: Int64) -> AdPlaces:
    """Find ads that are sorted by SID and id.

    A prefix below an absent node belongs where the children of that node would be: before those of
    the node whose place it takes.
    """
    nodes = Found(np.zeros(len(ad_ids), np.int64), np.ones(len(ad_ids), np.bool_))
    first = np.zeros(len(ad_ids), np.bool_)
    first[:1] = True
    levels = [Level(nodes, first)]
    for of_level in tokens.T:
        entries = _within(trie.node_offsets, nodes, trie.csr_tokens, of_level)
        nodes = Found(entries.at + 1, entries.there)
        first = first.copy()
        first[1:] |= of_level[1:] != of_level[:-1]
        levels.append(Level(nodes, first))
    leaves = Found(nodes.at - trie.first_leaf, nodes.there)
    return AdPlaces(tuple(levels), leaves, _within(ads.ad_offsets, leaves, ads.ad_ids, ad_ids))


def _within(
    offsets: npt.NDArray[np.integer],
    groups: Found,
    keys: npt.NDArray[np.integer],
    wanted: npt.NDArray[np.integer],
) -> Found:
    begins, ends = offsets[groups.at], offsets[groups.at + groups.there]
    return bisected(lambda places: keys[places], begins, ends, wanted)


def edited_trie(
    editor: Editor, trie: SidTrie, tokens: Tokens, levels: tuple[Level, ...], gone: Int64
) -> SidTrie:
    """Add the SIDs of put ads, and remove the leaves that have lost all ads."""
    removed, counts = gone + trie.first_leaf, [*trie.level_counts]
    if not len(gone) and not levels[-1].new.any():
        return trie
    entries: list[tuple[Int64, Int64, Tokens]] = []
    nodes: list[Regrouped] = []
    for level in range(trie.sid_length, 0, -1):
        new, above = levels[level].new, levels[level - 1]
        counts[level] += int(new.sum()) - len(removed)
        entries.insert(0, (removed - 1, levels[level].nodes.at[new] - 1, tokens[new, level - 1]))
        joining = Found(above.nodes.at[new], above.nodes.there[new])
        first = above.first[new]
        parents = regrouped(trie.node_offsets, removed - 1, joining, first, stays=level == 1)
        nodes.insert(0, parents)
        removed = parents.gone
    require_ids(sum(counts), "trie nodes")
    gone_entries, at, new_tokens = map(np.concatenate, zip(*entries, strict=True))
    of_entries = Edit(trie.num_entries, gone_entries, at)
    of_nodes = Edit(
        len(trie.node_offsets) - 1,
        np.concatenate([each.edit.removed for each in nodes]),
        np.concatenate([each.edit.at for each in nodes]),
    )
    sizes = np.concatenate([each.sizes for each in nodes])
    return SidTrie(
        trie.vocab_sizes,
        tuple(counts),
        editor.offsets(trie.node_offsets, of_nodes, sizes),
        editor.rows(trie.csr_tokens, of_entries, new_tokens),
    )
