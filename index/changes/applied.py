"""The snapshot that changes of ads make of another, which stays as it is.

It answers as a build of the changed ads does, and its arrays are those of that build, except for
rules. New rules, rows of components and alternatives come after the others, and those that no ad
uses any more stay. So do values. `canonical` puts them in order. A snapshot may lose all ads: its
trie then has only the root. Arrays that do not change are shared.
"""

from dataclasses import replace

import numpy as np

from grace.configs.arrays import AnyArray, Int64
from grace.configs.eligibility import Eligibility, MatcherMode
from grace.index.allocation import Allocate, plain_memory
from grace.index.builder.arrange import only_used
from grace.index.builder.batches import AdColumns
from grace.index.builder.collect import CollectedAds
from grace.index.builder.sorting import order_by_id, order_by_sid
from grace.index.changes.change import Changes
from grace.index.changes.places import edited_trie, first_with, places_of_ads
from grace.index.changes.rows import Edit, Editor, Regrouped, bisected, regrouped
from grace.index.changes.ruling import Ruled, with_rules_of
from grace.index.matchers.derive import derive
from grace.index.matchers.exact_lists import ExactLists, postings, rules_of_leaves
from grace.index.matching.ads import NO_ENTITY, Entities, SidToAds
from grace.index.snapshot import Snapshot, require_ids
from grace.index.targeting.rules import gather_spans
from grace.index.updates.id_map import distinct


def applied(
    snapshot: Snapshot, changes: Changes, threads: int, allocate: Allocate = plain_memory
) -> Snapshot:
    """Return the snapshot in its mode. In the paper's modes this derives all matchers again."""
    editor = Editor(threads, allocate)
    puts = _in_order(snapshot, changes.puts, threads)
    ids = np.concatenate([puts.columns.ad_ids, np.asarray(changes.removed, np.int64)])
    if len(distinct(ids)) < len(ids):
        raise ValueError("changes: an ad is changed twice: pass the last change of each")
    old = snapshot.ads
    ordinals = old.ordinals(ids)
    removed = np.sort(ordinals[ordinals >= 0])
    tokens, trie = puts.columns.tokens, snapshot.trie
    *levels, of_leaves, of_puts = places_of_ads(snapshot, tokens, puts.columns.ad_ids)
    of_ads = Edit(old.num_ads, removed, of_puts.at)
    require_ids(of_ads.rows, "ads")
    first = first_with(tokens)
    leaves = regrouped(old.ad_offsets, removed, of_leaves, first[-1])
    trie = edited_trie(editor, trie, tokens, first, levels, leaves.gone)
    ruled = with_rules_of(editor, snapshot, puts)
    ads = SidToAds(
        editor.offsets(old.ad_offsets, leaves.edit, leaves.sizes),
        editor.rows(old.ad_ids, of_ads, puts.columns.ad_ids),
        editor.ids(old.ad_rule, of_ads, ruled.rule_of, ruled.numbers),
        editor.rows(old.ad_weight, of_ads, puts.columns.weights),
        _lookup(editor, old, of_ads, puts.columns.ad_ids),
    )
    entities = tuple(
        _entities(editor, each, of_ads, puts.columns.entity_ids[:, number])
        for number, each in enumerate(snapshot.entities)
    )
    columns = tuple(sorted({*snapshot.facts.rule_columns, *changes.rule_columns}))
    facts = replace(snapshot.facts, rule_columns=columns)
    mode, exact = snapshot.mode, None
    if snapshot.exact is not None:
        exact = _exact(editor, snapshot, snapshot.exact, ruled, leaves, ads)
    rules = ruled.rules, ruled.set_values
    after = Snapshot(facts, snapshot.schema, trie, ads, *rules, entities, mode, None, exact)
    if snapshot.matchers is None:
        return after
    return derive(after, Eligibility(mode, snapshot.matchers.k_way), threads, allocate)


def canonical(snapshot: Snapshot) -> Snapshot:
    """Return the facts that a build of the same ads makes: array for array, without a mode."""
    strings = [values.strings for values in snapshot.set_values]
    rule_of, rules, set_values = only_used(snapshot.rules, strings, snapshot.ads.ad_rule)
    ads = replace(snapshot.ads, ad_rule=rule_of)
    found = replace(snapshot, ads=ads, rules=rules, set_values=set_values)
    return replace(found, mode=MatcherMode.CD, matchers=None, exact=None)


def _in_order(snapshot: Snapshot, puts: CollectedAds | None, threads: int) -> CollectedAds:
    """Sort ads by SID and id."""
    if puts is None:
        columns = AdColumns.empty(0, snapshot.trie.sid_length, len(snapshot.entities))
        return CollectedAds(columns, snapshot.rules, ())
    given = puts.columns
    order = order_by_sid(given.tokens, order_by_id(given.ad_ids, threads), threads)
    return replace(puts, columns=given.where(order))


def _lookup(editor: Editor, old: SidToAds, of_ads: Edit, ad_ids: Int64) -> AnyArray:
    """Return the ordinals in ascending order of ad id. `ad_ids` are those of the new ads."""

    def places(ids: Int64) -> Int64:
        ends = np.full(len(ids), old.num_ads)
        return bisected(lambda at: old.ad_ids[old.ad_lookup[at]], np.zeros_like(ends), ends, ids).at

    order = np.argsort(ad_ids)
    edit = Edit(old.num_ads, np.sort(places(old.ad_ids[of_ads.removed])), places(ad_ids[order]))
    return editor.ids(old.ad_lookup, edit, of_ads.places[order], of_ads)


def _entities(editor: Editor, old: Entities, of_ads: Edit, ids: Int64) -> Entities:
    """Return the entities after an edit of the ads. `ids` are those of the new ads."""
    joining = np.flatnonzero(ids != NO_ENTITY)
    joining = joining[np.argsort(ids[joining], kind="stable")]
    wanted = ids[joining]
    zeros = np.zeros(len(wanted), np.int64)
    found = bisected(lambda at: old.ids[at], zeros, zeros + len(old), wanted)
    first = np.ones(len(wanted), np.bool_)
    first[1:] = wanted[1:] != wanted[:-1]
    leaving = of_ads.removed[old.of_ad[of_ads.removed] != NO_ENTITY]
    owners = old.of_ad[leaving].astype(np.int64)

    def members(begins: Int64, ends: Int64, ordinals: Int64) -> Int64:
        return bisected(lambda at: old.ads[at], old.offsets[begins], old.offsets[ends], ordinals).at

    removed = np.sort(members(owners, owners + 1, leaving))
    at = members(found.at, found.at + found.there, of_ads.at[joining])
    groups = regrouped(old.offsets, removed, found, first)
    edit = Edit(len(old), groups.gone, groups.new)
    of_new = np.full(len(ids), NO_ENTITY, np.int64)
    of_new[joining] = edit.moved(found.at)
    new = ~found.there
    of_new[joining[new]] = edit.places[np.cumsum(first[new]) - 1]
    return Entities(
        old.name,
        editor.rows(old.ids, edit, wanted[first & new]),
        editor.ids(old.of_ad, of_ads, of_new, edit),
        editor.offsets(old.offsets, groups.edit, groups.sizes),
        editor.ids(old.ads, Edit(len(old.ads), removed, at), of_ads.places[joining], of_ads),
    )


def _exact(
    editor: Editor, old: Snapshot, lists: ExactLists, ruled: Ruled, leaves: Regrouped, ads: SidToAds
) -> ExactLists:
    """List the rules of changed leaves again, and the rows that name values if some are new."""
    begins = ads.ad_offsets[leaves.edit.places]
    offsets, rule_of = gather_spans(ads.ad_rule, begins, leaves.sizes)
    changed = rules_of_leaves(offsets, rule_of, ruled.rules, editor.threads)
    of_leaves = editor.lists((lists.leaf_offsets, lists.leaf_rules), leaves.edit, changed)
    require_ids(len(of_leaves[1]), "rules of leaves")
    named, before = ([p for p in each.parts if p.has_values] for each in (ruled.rules, old.rules))
    found = tuple(
        own if part is same else postings(part, len(values), editor.threads)
        for part, same, own, values in zip(
            named, before, lists.postings, ruled.set_values, strict=True
        )
    )
    return ExactLists(*of_leaves, found, ruled.rules.num_rules)
