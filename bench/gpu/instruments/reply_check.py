"""Check the whole path's replies: the ads that its SIDs and plain rules give, and no others.

The user's strings and the rules' lists decide here which ads a user may see, in NumPy, without the
service's matcher: attribute bits one by one, set values by the rules' lists.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from grace.configs.arrays import Bools, Int64, Integers
from grace.configs.errors import DeviceError
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import SetRules, places_of
from grace.index.targeting.schema import Attribute, TargetSet
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserAttributes
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse
from grace.server.messages import AnsweredBatch, GeneratedBatch


class LeafAds(NamedTuple):
    """The ads of leaves: ids, the place of each one's leaf, and whether the user may see it."""

    ids: Int64
    leaf: Int64
    passes: Bools


def check_replies(
    name: str, snapshot: Snapshot, generated: GeneratedBatch, answered: AnsweredBatch
) -> None:
    """Raise if a reply's ads are not those that its SIDs and plain rules give."""
    leaves, scores = generated.leaves.numpy(), generated.scores.numpy()
    for row, answer in enumerate(answered.answers):
        retrieval, reply = answer.request.retrieval, RetrieveResponse.FromString(answer.reply)
        live = np.flatnonzero(leaves[row] != NO_NODE)
        request = RetrieveRequest.FromString(retrieval.message)
        ads = ads_of(snapshot, leaves[row, live], request)
        passing = scores[row, live][ads.leaf[ads.passes]]
        expected = dict(zip(ads.ids[ads.passes].tolist(), passing.tolist(), strict=True))
        fault = fault_of(reply, expected, len(ads.ids), retrieval.max_ads)
        if fault:
            raise DeviceError(
                f"{name}, the whole path, request {retrieval.request_id}: {fault}: it is wrong, "
                "and was not measured; run the tests of index and server"
            )


def fault_of(
    reply: RetrieveResponse, expected: Mapping[int, float], generated: int, max_ads: int
) -> str:
    """Return what is wrong with a reply, given the eligible ads' scores and the number of all."""
    ineligible = [ad for ad in reply.ad_ids if ad not in expected]
    if ineligible:
        return f"{len(ineligible)} of {len(reply.ad_ids)} ads are not for this user"
    if len(set(reply.ad_ids)) < len(reply.ad_ids):
        return "an ad comes twice"
    wanted = min(max_ads, len(expected))
    counts = (reply.counts.ads_generated, reply.counts.ads_matched, len(reply.ad_ids))
    if counts != (generated, len(expected), wanted):
        return (
            f"{counts} ads were generated, matched and returned, "
            f"{(generated, len(expected), wanted)} are right"
        )
    if list(reply.scores) != [expected[ad] for ad in reply.ad_ids]:
        return "scores are not those of the ads' SIDs"
    if list(reply.scores) != sorted(expected.values(), reverse=True)[:wanted]:
        return "other ads are better than those returned"
    return ""


def ads_of(snapshot: Snapshot, leaves: Integers, request: RetrieveRequest) -> LeafAds:
    ads = snapshot.ads
    offsets, ordinals = places_of(ads.ad_offsets, leaves)
    rules, of_rule = np.unique(ads.ad_rule[ordinals], return_inverse=True)
    of_leaf = np.repeat(np.arange(len(leaves)), np.diff(offsets))
    user = {name: list(given.values) for name, given in request.user.items()}
    return LeafAds(ads.ad_ids[ordinals], of_leaf, eligible_rules(snapshot, rules, user)[of_rule])


def eligible_rules(snapshot: Snapshot, rules: Integers, user: UserAttributes) -> Bools:
    """Return which rules let the user see an ad, by the schema's definitions.   [n]"""
    schema, targeting = snapshot.schema, snapshot.rules
    passes = np.ones(len(rules), np.bool_)
    rows = targeting.bitmask_table[targeting.rows[rules, 0]]
    for attribute, first in schema.places:
        for bit in _bits(attribute, first, _values(user, attribute.name)):
            passes &= (rows[:, bit >> 6] >> np.uint64(bit & 63) & np.uint64(1)).astype(np.bool_)
    for s, target_set in enumerate(schema.sets):
        own, values = targeting.rows[rules, 1 + s], _values(user, target_set.name)
        numbers = snapshot.set_values[s].ids
        ids = [numbers[value] for value in values if value in numbers]
        passes &= _set_passes(target_set, targeting.sets[s], own, ids, given=bool(values))
    return passes


def _values(user: UserAttributes, name: str) -> Sequence[str]:
    values = user.get(name, ())
    return values if isinstance(values, Sequence) else ()


def _bits(attribute: Attribute, first: int, values: Sequence[str]) -> list[int]:
    """The bits that must be set; `other` stands for an unlisted value, and for no value."""
    other = first + len(attribute.values)
    given = list(values) or ([] if attribute.missing is None else [attribute.missing])
    places = {value: first + place for place, value in enumerate(attribute.values)}
    return [places.get(value, other) for value in given] or [other]


def _set_passes(
    target_set: TargetSet, rules: SetRules, own: Integers, ids: Sequence[int], *, given: bool
) -> Bools:
    included, has_include = _listed(*rules.include, own, ids)
    excluded, has_exclude = _listed(*rules.exclude, own, ids)
    passes = (included | ~has_include) & ~excluded
    return passes if given or target_set.missing_passes_exclude else passes & ~has_exclude


def _listed(
    offsets: Int64, listed: Integers, rules: Integers, ids: Sequence[int]
) -> tuple[Bools, Bools]:
    """Return whether any of the ids is in each rule's list, and whether the list has any."""
    ends, places = places_of(offsets, rules)
    sums = np.concatenate([[0], np.cumsum(np.isin(listed[places], ids))])[ends]
    return np.diff(sums) > 0, np.diff(ends) > 0
