"""Joins the tries and node matchers of shards whose first tokens ascend from shard to shard.

Nodes are numbered level by level in prefix order, so a level of the whole is the same level of the
shards, one after another; the root alone belongs to all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.index.builder.sharding.copies import Spans, SpanTable, number_spans
from grace.index.builder.sharding.stored_arrays import OutputFolder, Sliced, blocks
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.snapshot import require_ids
from grace.index.trie import SidTrie

__all__ = ["LevelCounts", "MatcherSource", "TrieSource", "join_node_matchers", "join_tries"]


@dataclass(frozen=True, slots=True)
class LevelCounts:
    """Nodes of levels 0 .. L of one trie."""

    nodes: tuple[int, ...]

    def first_node(self, level: int) -> int:
        return sum(self.nodes[:level])

    def entries(self, level: int) -> tuple[int, int]:
        """The child entries that lead to a level's nodes."""
        return self.first_node(level) - 1, self.first_node(level + 1) - 1


@dataclass(frozen=True, slots=True)
class TrieSource:
    counts: LevelCounts
    node_offsets: Sliced
    csr_tokens: Sliced


@dataclass(frozen=True, slots=True)
class MatcherSource:
    """One kind of matcher of one shard, as index.matchers has it."""

    counts: LevelCounts
    index: Sliced
    table: Sliced
    level_rows: tuple[int, ...]
    level_widths: tuple[int, ...] | None = None
    offsets: Sliced | None = None

    def ids_of_level(self, level: int) -> tuple[int, int]:
        """Where in `index` the ids of a level begin and end."""
        begin, end = self.counts.entries(level)
        if self.offsets is not None:
            first, last = (int(self.offsets[at : at + 1][0]) for at in (begin, end))
            return first, last
        widths = self.level_widths or (1,) * level
        sizes = self.counts.nodes[1:]
        first = sum(size * width for size, width in zip(sizes[: level - 1], widths, strict=False))
        return first, first + (end - begin) * widths[level - 1]


def join_tries(
    shards: Sequence[TrieSource], vocab_sizes: tuple[int, ...], out: OutputFolder
) -> SidTrie:
    length = len(vocab_sizes)
    below = [sum(shard.counts.nodes[level] for shard in shards) for level in range(1, length + 1)]
    whole = LevelCounts((1, *below))
    nodes = sum(whole.nodes)
    require_ids(nodes, "trie nodes")
    tokens = out.array("csr_tokens", "<u2")
    for level in range(1, length + 1):
        for shard in shards:
            for block in blocks(shard.csr_tokens, *shard.counts.entries(level)):
                tokens.append(block)
    offsets = out.array("node_offsets", "<i4")
    offsets.append([0])
    for level in range(1, length):
        before = 0  # children of this level's nodes in the shards so far
        for shard in shards:
            first = shard.counts.first_node(level)
            moved = whole.first_node(level + 1) + before - shard.counts.first_node(level + 1)
            for block in blocks(shard.node_offsets, first, first + shard.counts.nodes[level]):
                offsets.append(block + np.int32(moved))
            before += shard.counts.nodes[level + 1]
    offsets.append([nodes - 1])
    trie = SidTrie(vocab_sizes, whole.nodes, offsets.finish(), tokens.finish())
    first_tokens = trie.csr_tokens[: whole.nodes[1]]
    if not (first_tokens[1:] > first_tokens[:-1]).all():
        raise ValueError("the first tokens of the shards must ascend from shard to shard")
    return trie


def join_node_matchers(
    shards: Sequence[MatcherSource], name: str, out: OutputFolder
) -> NodeMatchers:
    """Row ids are by first use within a level, so each level is numbered by itself."""
    table = out.array(f"{name}_table", "<u8", shards[0].table.shape[1:])
    index = out.array(f"{name}_index", "<i4")
    offsets = out.array(f"{name}_offsets", "<i4")
    offsets.append(np.zeros(1, np.int32))
    level_rows: list[int] = []
    for level in range(1, len(shards[0].level_rows) + 1):
        numbered = number_spans([_level_rows(shard, level) for shard in shards])
        base = table.rows
        for shard, new_of, is_first in zip(shards, numbered.new_of, numbered.is_first, strict=True):
            first = sum(shard.level_rows[: level - 1])
            at = 0
            for rows in blocks(shard.table, first, first + len(new_of)):
                table.append(rows[is_first[at : at + len(rows)]])
                at += len(rows)
            begin, end = shard.ids_of_level(level)
            require_ids(index.rows + end - begin, "matcher ids")
            if shard.offsets is not None:
                entries = shard.counts.entries(level)
                for ends in blocks(shard.offsets, entries[0] + 1, entries[1] + 1):
                    offsets.append(ends + np.int32(index.rows - begin))
            for ids in blocks(shard.index, begin, end):
                index.append(new_of[ids - np.int32(first)] + np.int32(base))
        level_rows.append(numbered.count)
        require_ids(table.rows, "matcher rows")
    return NodeMatchers(
        index.finish(),
        table.finish(),
        tuple(level_rows),
        shards[0].level_widths,
        None if shards[0].offsets is None else offsets.finish(),
    )


def _level_rows(shard: MatcherSource, level: int) -> SpanTable:
    first, count = sum(shard.level_rows[: level - 1]), shard.level_rows[level - 1]
    row_bytes = 8 * shard.table.shape[1]
    return SpanTable(
        count,
        count * row_bytes,
        lambda: map(Spans.of_rows, blocks(shard.table, first, first + count)),
    )
