"""The whole way's answers, compared: its SIDs with the plain loop's, its ads with plain rules.

Which ads a user may see is decided here from the user's strings and the rules' lists, in NumPy,
without the service's matcher: attribute bits one by one, set values by what the lists say.
"""

from collections.abc import Sequence
from statistics import mean

import numpy as np
import numpy.typing as npt
import torch

from grace.bench.gpu.agreement import require_equal, require_overlap
from grace.bench.gpu.found import LEAST_OVERLAP, Found, overlap
from grace.bench.gpu.full_path import FullPath, RungGeneration, Way
from grace.configs.errors import DeviceError
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import SetRules
from grace.index.targeting.schema import Attribute, TargetSet
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserAttributes
from grace.index.users.values import InternedValues
from grace.model.definition.beam_search import leaves_of
from grace.model.engine.fast_weights import Precision
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse

__all__ = ["check_full", "check_reply", "eligible_rules"]

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


@torch.inference_mode()
def check_full(
    path: FullPath, generation: RungGeneration, expected: Sequence[Found], precision: Precision
) -> float:
    """How many of the SIDs are those of float32; raises where anything is wrong."""
    shares, name = [], path.run.name
    for number, (requests, wanted) in enumerate(zip(path.requests, expected, strict=True)):
        way, what = path.way(requests), f"{path.run.name}, the full way, batch {number}"
        got = generation.last()
        require_equal(f"{what}, scores on the host", way.generated.scores, got.scores.cpu())
        share = overlap(got, wanted)
        require_overlap(f"{what} in {precision}", share, LEAST_OVERLAP[precision])
        shares.append(share)
        if path.run.looks_up:
            leaves = leaves_of(got.nodes, path.pair.index).cpu()
            require_equal(f"{what}, SIDs on the host", way.generated.leaves, leaves)
            _check_replies(name, path.pair.snapshot, way)
    return mean(shares)


def _check_replies(name: str, snapshot: Snapshot, way: Way) -> None:
    assert way.answered is not None
    leaves, scores = way.generated.leaves.numpy(), way.generated.scores.numpy()
    for row, answer in enumerate(way.answered.answers):
        retrieval = answer.request.retrieval
        user = RetrieveRequest.FromString(retrieval.message).user
        fault = check_reply(
            snapshot,
            {name: list(given.values) for name, given in user.items()},
            leaves[row],
            scores[row],
            retrieval.max_ads,
            RetrieveResponse.FromString(answer.reply),
        )
        if fault:
            raise DeviceError(
                f"{name}, the full way, request {retrieval.request_id}: {fault}: it is wrong, and "
                "was not measured; run the tests of index and server"
            )


def check_reply(
    snapshot: Snapshot,
    user: UserAttributes,
    leaves: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
    max_ads: int,
    reply: RetrieveResponse,
) -> str:
    """What is wrong with the ads of a reply to these SIDs; nothing if nothing is."""
    ads = snapshot.ads
    live = leaves != NO_NODE
    begins, ends = ads.ad_offsets[leaves[live]], ads.ad_offsets[leaves[live] + 1]
    ordinals = _ranges(begins, ends)
    rules, of_rule = np.unique(ads.ad_rule[ordinals], return_inverse=True)
    matched = eligible_rules(snapshot, rules, user)[of_rule]
    expected = dict(
        zip(
            ads.ad_ids[ordinals[matched]].tolist(),
            np.repeat(scores[live], ends - begins)[matched].tolist(),
            strict=True,
        )
    )
    ineligible = [ad for ad in reply.ad_ids if ad not in expected]
    if ineligible:
        return f"{len(ineligible)} of {len(reply.ad_ids)} ads are not for this user"
    if len(set(reply.ad_ids)) < len(reply.ad_ids):
        return "an ad comes twice"
    wanted = min(max_ads, len(expected))
    counts = (reply.counts.ads_generated, reply.counts.ads_matched, len(reply.ad_ids))
    if counts != (len(ordinals), len(expected), wanted):
        return (
            f"{counts} ads were generated, matched and returned, "
            f"{(len(ordinals), len(expected), wanted)} are right"
        )
    if list(reply.scores) != [expected[ad] for ad in reply.ad_ids]:
        return "scores are not those of the ads' SIDs"
    if list(reply.scores) != sorted(expected.values(), reverse=True)[:wanted]:
        return "other ads are better than those returned"
    return ""


def eligible_rules(
    snapshot: Snapshot, rules: npt.NDArray[np.integer], user: UserAttributes
) -> Bools:
    """Which of the rules let the user see the ad, by the schema's definitions.   [n]"""
    schema, targeting = snapshot.schema, snapshot.rules
    passes = np.ones(len(rules), np.bool_)
    rows = targeting.bitmask_table[targeting.bitmask[rules]]
    for attribute, first in zip(schema.attributes, schema.first_bits, strict=True):
        for bit in _bits(attribute, first, user.get(attribute.name, ())):
            passes &= (rows[:, bit >> 6] >> np.uint64(bit & 63) & np.uint64(1)).astype(np.bool_)
    for s, target_set in enumerate(schema.sets):
        own = targeting.set_rules[rules, s]
        values = user.get(target_set.name, ())
        passes &= _set_passes(target_set, targeting.sets[s], snapshot.set_values[s], own, values)
    return passes


def _bits(attribute: Attribute, first: int, values: Sequence[str]) -> list[int]:
    """All of them must be set. `other` stands for a value that is not listed, and for none."""
    other = first + len(attribute.values)
    given = list(values) or ([] if attribute.missing is None else [attribute.missing])
    places = {value: first + place for place, value in enumerate(attribute.values)}
    return [places.get(value, other) for value in given] or [other]


def _set_passes(
    target_set: TargetSet,
    rules: SetRules,
    interned: InternedValues,
    own: npt.NDArray[np.integer],
    values: Sequence[str],
) -> Bools:
    ids = [interned.ids[value] for value in values if value in interned.ids]
    included, has_include = _listed(rules.include_offsets, rules.include_values, own, ids)
    excluded, has_exclude = _listed(rules.exclude_offsets, rules.exclude_values, own, ids)
    passes = (included | ~has_include) & ~excluded
    if not values and not target_set.missing_passes_exclude:
        passes &= ~has_exclude
    return passes


def _listed(
    offsets: Int64, listed: npt.NDArray[np.int32], rules: npt.NDArray[np.integer], ids: list[int]
) -> tuple[Bools, Bools]:
    """Whether any of the ids is in each rule's list, and whether that has any."""
    begins, ends = offsets[rules], offsets[rules + 1]
    found = np.isin(listed[_ranges(begins, ends)], ids)
    sums = np.concatenate([[0], np.cumsum(found)])
    edges = np.concatenate([[0], np.cumsum(ends - begins)])
    return sums[edges[1:]] > sums[edges[:-1]], ends > begins


def _ranges(begins: Int64, ends: Int64) -> Int64:
    """begins[i] .. ends[i], one after the other."""
    counts = ends - begins
    starts = np.cumsum(counts) - counts
    return np.repeat(begins - starts, counts) + np.arange(int(counts.sum()))
