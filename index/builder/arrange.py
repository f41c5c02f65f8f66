"""Puts the collected ads in (SID, ad id) order and numbers everything by first use in it."""

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.builder.collect import CollectedAds
from grace.index.builder.rule_table import RawRules, RawSetRules
from grace.index.builder.sorting import first_use, order_by_id, order_by_sid
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import require_ids
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, array_out, declare

__all__ = ["Arranged", "arrange", "gather_spans", "renumber_rules"]

_trie_count = declare(
    "grace_trie_count",
    ctypes.c_int64,
    array_in(np.uint16, 2),
    ctypes.c_int32,
    array_out(np.int64),
)
_trie_fill = declare(
    "grace_trie_fill",
    ctypes.c_int64,
    array_in(np.uint16, 2),
    ctypes.c_int32,
    array_in(np.int64),
    array_out(np.int32),
    array_out(np.uint16),
    array_out(np.int64),
)


@dataclass(frozen=True, slots=True)
class Arranged:
    trie: SidTrie
    ads: SidToAds
    rules: TargetingRules
    set_values: tuple[InternedValues, ...]


def arrange(collected: CollectedAds, vocab_sizes: tuple[int, ...], threads: int) -> Arranged:
    by_id = order_by_id(collected.ad_ids, threads)
    order = order_by_sid(collected.tokens, by_id, threads)
    trie, ad_offsets = _trie(collected.tokens[order], vocab_sizes)
    ordinal_of = np.empty(len(order), np.int32)
    ordinal_of[order] = np.arange(len(order), dtype=np.int32)
    rules = first_use(collected.rule_of[order], len(collected.rules.parts))
    ads = SidToAds(
        ad_offsets,
        collected.ad_ids[order],
        rules.new_of[collected.rule_of[order]],
        collected.weights[order],
        ordinal_of[by_id],
    )
    targeting, set_values = renumber_rules(collected, rules.old_of)
    return Arranged(trie, ads, targeting, set_values)


def _trie(
    tokens: npt.NDArray[np.uint16], vocab_sizes: tuple[int, ...]
) -> tuple[SidTrie, npt.NDArray[np.int64]]:
    ads, length = tokens.shape
    counts = np.empty(length + 1, np.int64)
    _trie_count(ads, tokens, length, counts)
    nodes, leaves = int(counts.sum()), int(counts[-1])
    require_ids(nodes, "trie nodes")
    node_offsets = np.empty(nodes - leaves + 1, np.int32)
    csr_tokens = np.empty(nodes - 1, np.uint16)
    ad_offsets = np.empty(leaves + 1, np.int64)
    _trie_fill(ads, tokens, length, counts, node_offsets, csr_tokens, ad_offsets)
    trie = SidTrie(vocab_sizes, tuple(counts.tolist()), node_offsets, csr_tokens)
    return trie, ad_offsets


def renumber_rules(
    collected: CollectedAds, old_rules: npt.NDArray[np.int32]
) -> tuple[TargetingRules, tuple[InternedValues, ...]]:
    """The rules in this order, their components by first use in it; nothing else is kept."""
    raw: RawRules = collected.rules
    parts = raw.parts[old_rules]
    bitmasks = first_use(parts[:, 0], len(raw.bitmasks))
    set_rules = np.empty((len(parts), len(raw.sets)), np.int32)
    sets, set_values = [], []
    for s, (raw_set, strings) in enumerate(zip(raw.sets, collected.set_values, strict=True)):
        used = first_use(parts[:, 1 + s], len(raw_set.offsets) - 1)
        set_rules[:, s] = used.new_of[parts[:, 1 + s]]
        renumbered, values = _renumber_set(raw_set, used.old_of, strings)
        sets.append(renumbered)
        set_values.append(values)
    rules = TargetingRules(
        bitmasks.new_of[parts[:, 0]], raw.bitmasks[bitmasks.old_of], set_rules, tuple(sets)
    )
    return rules, tuple(set_values)


def _renumber_set(
    raw: RawSetRules, old_rules: npt.NDArray[np.int32], strings: list[str]
) -> tuple[SetRules, InternedValues]:
    """Takes the spans of the rules in use apart; values are numbered in UTF-8 order."""
    begins, ends = raw.offsets[old_rules], raw.offsets[old_rules + 1]
    included = raw.words[begins].astype(np.int64)
    include_offsets, include = gather_spans(raw.words, begins + 1, included)
    exclude_offsets, exclude = gather_spans(
        raw.words, begins + 1 + included, ends - begins - 1 - included
    )
    used = np.zeros(len(strings), np.bool_)
    used[include] = True
    used[exclude] = True
    used_ids = np.flatnonzero(used)
    # Python orders strings by code point, which is the order of their UTF-8 bytes.
    in_order = sorted(used_ids.tolist(), key=strings.__getitem__)
    new_of = np.full(len(strings), -1, np.int32)
    new_of[in_order] = np.arange(len(in_order), dtype=np.int32)
    rules = SetRules(
        include_offsets,
        _sorted_within(new_of[include], include_offsets),
        exclude_offsets,
        _sorted_within(new_of[exclude], exclude_offsets),
    )
    return rules, InternedValues.of(strings[value] for value in in_order)


def gather_spans(
    words: npt.NDArray[np.int32], begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The spans words[begins[i] : begins[i] + sizes[i]] side by side, and their offsets."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    places = np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
    return offsets, words[places]


def _sorted_within(
    values: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    group = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    keys = (group << 32) | values
    keys.sort()
    return (keys & 0xFFFFFFFF).astype(np.int32)
