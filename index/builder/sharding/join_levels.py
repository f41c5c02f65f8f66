"""Join the tries and node matchers of shards whose first tokens ascend from shard to shard.

Nodes are numbered level by level in prefix order. So a level of the whole is that level of each
shard, one after another; only the root belongs to all of them.
"""

from collections.abc import Sequence

import numpy as np

from grace.index.builder.sharding.copies import SpanTable, number_spans
from grace.index.builder.sharding.output_folder import OutputFolder
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.snapshot import require_ids
from grace.index.storage.mapped import blocks
from grace.index.trie import SidTrie


def join_tries(tries: Sequence[SidTrie], out: OutputFolder) -> SidTrie:
    length = tries[0].sid_length
    below = [sum(trie.level_counts[level] for trie in tries) for level in range(1, length + 1)]
    starts = np.cumsum([0, 1, *below]).tolist()
    require_ids(starts[-1], "trie nodes")
    tokens, offsets = out.array("csr_tokens", "<u2"), out.array("node_offsets", "<i4")
    offsets.append([0])
    for level in range(1, length + 1):
        for trie in tries:
            for block in blocks(trie.csr_tokens, *trie.entries_of_level(level)):
                tokens.append(block)
    for level in range(1, length):
        next_child = starts[level + 1]  # the first child of this level's nodes in the next trie
        for trie in tries:
            moved = np.int32(next_child - trie.level_starts[level + 1])
            level_nodes = trie.level_starts[level], trie.level_starts[level + 1]
            for block in blocks(trie.node_offsets, *level_nodes):
                offsets.append(block + moved)
            next_child += trie.level_counts[level + 1]
    offsets.append([starts[-1] - 1])
    trie = SidTrie(tries[0].vocab_sizes, (1, *below), offsets.finish(), tokens.finish())
    first_tokens = trie.csr_tokens[: below[0]]
    if not (first_tokens[1:] > first_tokens[:-1]).all():
        raise ValueError("the first tokens of the shards must ascend from shard to shard")
    return trie


def join_node_matchers(
    tries: Sequence[SidTrie], shards: Sequence[NodeMatchers], name: str, out: OutputFolder
) -> NodeMatchers:
    """Join one kind of matcher. Row ids are by first use within a level, so levels are separate."""
    table = out.array(f"{name}_table", "<u8", shards[0].table.shape[1:])
    index, offsets = out.array(f"{name}_index", "<i4"), out.array(f"{name}_offsets", "<i4")
    offsets.append([0])
    level_rows: list[int] = []
    for level in range(1, len(shards[0].level_rows) + 1):
        rows = [
            (sum(shard.level_rows[: level - 1]), sum(shard.level_rows[:level])) for shard in shards
        ]
        numbered = number_spans(
            [SpanTable.of_rows(shard.table, *at) for shard, at in zip(shards, rows, strict=True)]
        )
        base = table.rows
        for trie, shard, at, new_of, is_first in zip(
            tries, shards, rows, numbered.new_of, numbered.is_first, strict=True
        ):
            table.append_first(blocks(shard.table, *at), is_first)
            begin, end = shard.ids_of_level(trie, level)
            require_ids(index.rows + end - begin, "matcher ids")
            if shard.offsets is not None:
                first_entry, end_entry = trie.entries_of_level(level)
                for ends in blocks(shard.offsets, first_entry + 1, end_entry + 1):
                    offsets.append(ends + np.int32(index.rows - begin))
            for ids in blocks(shard.index, begin, end):
                index.append(new_of[ids - np.int32(at[0])] + np.int32(base))
        level_rows.append(numbered.count)
        require_ids(table.rows, "matcher rows")
    return NodeMatchers(
        index.finish(),
        table.finish(),
        tuple(level_rows),
        shards[0].level_widths,
        None if shards[0].offsets is None else offsets.finish(),
    )
