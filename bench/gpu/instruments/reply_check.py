"""Check the whole path's replies: the ads that its SIDs and plain rules give, and no others.

The plain tests of `Explain` decide here which ads a user may see, without the service's matcher.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from grace.configs.arrays import Bools, Int64, Integers
from grace.configs.errors import DeviceError
from grace.index.forms.components import parts_of
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import places_of
from grace.index.trie import NO_NODE
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
    passes = eligible_rules(snapshot, rules, request)[of_rule]
    return LeafAds(ads.ad_ids[ordinals], of_leaf, passes)


def eligible_rules(snapshot: Snapshot, rules: Integers, request: RetrieveRequest) -> Bools:
    """Return which rules, none of which has alternatives, let the user see an ad.   [n]"""
    passes = np.ones(len(rules), np.bool_)
    for component, ids, rows in parts_of(snapshot):
        own, of_rule = np.unique(ids[rules], return_inverse=True)
        tested = [component.explain(rows, row, request) for row in own.tolist()]
        passing = [all(each.passes for each in reasons) for reasons in tested]
        passes &= np.array(passing, np.bool_)[of_rule]
    return passes
