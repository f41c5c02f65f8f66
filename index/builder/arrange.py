"""Put the collected ads in (SID, ad id) order, and number everything by first use in it."""

from collections.abc import Sequence

import numpy as np

from grace.configs.arrays import Int32, Int64, UInt16
from grace.index.builder.batches import AdColumns
from grace.index.builder.collect import CollectedAds
from grace.index.builder.sorting import first_use, group_by_entity, order_by_id, order_by_sid
from grace.index.matching.ads import NO_ENTITY, Entities, SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts, require_ids
from grace.index.storage.array_file import read_rows
from grace.index.targeting.rules import (
    Column,
    Groups,
    Lists,
    TargetingRules,
    lists_in,
    take,
    take_lists,
    with_lists,
)
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues


def arrange(
    collected: CollectedAds,
    facts: SnapshotFacts,
    schema: TargetingSchema,
    vocab_sizes: tuple[int, ...],
    threads: int,
) -> Snapshot:
    given = collected.columns
    by_id = order_by_id(given.ad_ids, threads)
    order = order_by_sid(given.tokens, by_id, threads)
    trie, ad_offsets = _trie(given.tokens[order], vocab_sizes)
    ordinal_of = np.empty(len(order), np.int32)
    ordinal_of[order] = np.arange(len(order), dtype=np.int32)
    rule_of, rules, set_values = only_used(
        collected.rules, collected.set_values, given.rule_of[order]
    )
    ads = SidToAds(
        ad_offsets, given.ad_ids[order], rule_of, given.weights[order], ordinal_of[by_id]
    )
    entities = tuple(
        group_by_entity(name, given.entity_ids[order, number], threads)
        for number, name in enumerate(schema.entities)
    )
    return Snapshot(facts, schema, trie, ads, rules, set_values, entities)


def taken_apart(
    snapshot: Snapshot, first_leaf: int = 0, end_leaf: int | None = None
) -> CollectedAds:
    """Return ads of some leaves as if just read. The snapshot may be mapped, and repeat ids."""
    ads, trie, rules = snapshot.ads, snapshot.trie, snapshot.rules
    end_leaf = trie.num_leaves if end_leaf is None else end_leaf
    offsets = read_rows(ads.ad_offsets, first_leaf, end_leaf + 1)
    begin, end = int(offsets[0]), int(offsets[-1])
    columns = AdColumns(
        read_rows(ads.ad_ids, begin, end),
        np.repeat(trie.sids(np.arange(first_leaf, end_leaf)), np.diff(offsets), axis=0),
        read_rows(ads.ad_weight, begin, end),
        read_rows(ads.ad_rule, begin, end),
        np.empty((end - begin, len(snapshot.entities)), np.int64),
    )
    for number, entities in enumerate(snapshot.entities):
        columns.entity_ids[:, number] = ids_of_ads(entities, begin, end)
    return CollectedAds(columns, rules, tuple(values.strings for values in snapshot.set_values))


def ids_of_ads(entities: Entities, begin: int = 0, end: int | None = None) -> Int64:
    """Return the entity of ordinals begin .. end - 1, NO_ENTITY for an ad that has none."""
    places = read_rows(entities.of_ad, begin, len(entities.of_ad) if end is None else end)
    has = places != NO_ENTITY
    ids = np.full(len(places), NO_ENTITY, np.int64)
    ids[has] = entities.ids[places[has]]
    return ids


def _trie(tokens: UInt16, vocab_sizes: tuple[int, ...]) -> tuple[SidTrie, Int64]:
    """Return the trie of ads in SID order, and where the ads of each leaf begin."""
    ads, length = tokens.shape
    begins = np.zeros(ads, np.bool_)  # by ad: whether a node of this level begins with it
    begins[0] = True
    counts, offsets, csr_tokens, firsts = [1], [], [], np.zeros(1, np.int64)
    for level in range(length):
        begins_above = begins.copy()
        begins[1:] |= tokens[1:, level] != tokens[:-1, level]
        firsts = np.flatnonzero(begins)
        first_children = np.flatnonzero(begins_above[firsts]) + (sum(counts) - 1)
        offsets.append(first_children.astype(np.int32))
        csr_tokens.append(tokens[firsts, level])
        counts.append(len(firsts))
        require_ids(sum(counts), "trie nodes")
    node_offsets = np.concatenate([*offsets, np.array([sum(counts) - 1], np.int32)])
    trie = SidTrie(vocab_sizes, tuple(counts), node_offsets, np.concatenate(csr_tokens))
    return trie, np.append(firsts, ads)


def only_used(
    old: TargetingRules, set_values: Sequence[Sequence[str]], rule_of: Int32
) -> tuple[Int32, TargetingRules, tuple[InternedValues, ...]]:
    """Number by first use what these ads use; return their new numbers, the rules and values."""
    is_plain = rule_of < old.num_rules
    members = rule_of if is_plain.all() else old.members(rule_of).values
    require_ids(len(members), "rules of ads")
    new_rule, old_rule = first_use(members, old.num_rules)
    of_ads = rule_of[~is_plain] - old.num_rules
    new_alternative, old_alternative = first_use(of_ads, old.num_alternatives)
    offsets, listed = take_lists(old.alternatives, old_alternative)
    numbers = np.append(new_rule, len(old_rule) + new_alternative).astype(np.int32)
    rows = old.rows[old_rule]
    parts, interned, strings = [], [], iter(set_values)
    for c, part in enumerate(old.parts):
        new_row, old_row = first_use(rows[:, c], len(part))
        rows[:, c] = new_row[rows[:, c]]
        columns = [take(column, old_row) for column in part.columns]
        if part.has_values:
            columns, values = _renumber_values(columns, next(strings))
            interned.append(values)
        parts.append(type(part)(*columns))
    rules = TargetingRules(rows, tuple(parts), Lists(offsets, new_rule[listed]))
    return numbers[rule_of], rules, tuple(interned)


def _renumber_values(
    columns: Sequence[Column], strings: Sequence[str]
) -> tuple[list[Column], InternedValues]:
    """Return these lists, their values numbered in UTF-8 order."""
    lists = [(column, of_column) for column in columns if (of_column := lists_in(column))]
    used = np.zeros(len(strings), np.bool_)
    for _, (_, values) in lists:
        used[values] = True
    used_ids = np.flatnonzero(used)
    # Python orders strings by code point, which is the order of their UTF-8 bytes.
    in_order = sorted(used_ids.tolist(), key=strings.__getitem__)
    new_of = np.full(len(strings), -1, np.int32)
    new_of[in_order] = np.arange(len(in_order), dtype=np.int32)
    renumbered = []
    for column, (offsets, values) in lists:
        row = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
        keys = np.sort(row << 32 | new_of[values])
        ascending = Lists(offsets, (keys & 0xFFFFFFFF).astype(np.int32))
        renumbered.append(_with_sorted_groups(with_lists(column, ascending)))
    return renumbered, InternedValues.of(strings[value] for value in in_order)


def _with_sorted_groups(column: Column) -> Column:
    """Put the groups of each row in ascending order."""
    if not isinstance(column, Groups):
        return column
    offsets, values = column.lists
    order = np.arange(len(offsets) - 1)
    for row in np.flatnonzero(np.diff(column.offsets) > 1).tolist():
        span = slice(*column.offsets[row : row + 2].tolist())
        order[span] = sorted(
            order[span].tolist(), key=lambda g: values[offsets[g] : offsets[g + 1]].tolist()
        )
    return column._replace(lists=take_lists(column.lists, order))
