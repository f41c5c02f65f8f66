"""What each user gets from a way to decode, counted after exact matching, and rows of means."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.bench.eligibility.search import Found, leads_to_ads
from grace.bench.result_file import Row
from grace.configs.errors import DeviceError
from grace.configs.machine import available_cores
from grace.index.matching.exact import ExactMatcher, MatchedAds
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserRows
from grace.kernels import DecodeIndex, Ops, UserTensors, with_eligible
from grace.kernels.eligibility.eligible_nodes import eligible_at

BUCKETS = (
    ("all", 0, 1 << 62),
    ("<5k", 0, 5_000),
    ("5k-9.9k", 5_000, 10_000),
    ("10k+", 10_000, 1 << 62),
)
"""The paper's buckets, by generated ads of a request."""

TOP_ADS = 100

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Best(NamedTuple):
    """The best that exact eligibility and beams without limit return, for each of B users."""

    mass: Shares  # sum of probabilities of the SIDs
    ads: list[npt.NDArray[np.int64]]  # ids of at most TOP_ADS


class Outcome(NamedTuple):
    """An element per user; beams are [users, steps]. Recall is NaN for a user without ads."""

    generated: Counts
    attributes: Counts  # ads that failed the bitmask
    sets: Counts  # passed it, and failed a set
    matched: Counts
    sids: Counts
    wasted: Counts  # SIDs none of whose ads matched
    beams: Counts
    useful: Counts  # beams that lead to an eligible ad
    mass_recall: Shares
    top_recall: Shares

    @staticmethod
    def joined(parts: Sequence["Outcome"]) -> "Outcome":
        return Outcome(*(np.concatenate(counts) for counts in zip(*parts, strict=True)))


class Counting:
    """One snapshot whose users are searched for. Its mode `exact` says which beams are useful."""

    def __init__(self, exact: Snapshot, device: torch.device, ops: Ops) -> None:
        self.snapshot, self.index = exact, DecodeIndex.of(exact, device)
        self.first_leaf = exact.trie.first_leaf
        self.matcher = ExactMatcher(exact, available_cores())
        self._device, self._ops = device, ops

    def asking(self, users: UserRows) -> tuple[UserTensors, Tensor]:
        """Return the users with their masks, and each one's eligible nodes.   bool [B, nodes]"""
        asked = with_eligible(UserTensors.of(users, self._device), self.index, self._ops)
        assert asked.eligible is not None
        nodes = [eligible_at(asked.eligible, user, self.index) for user in range(len(users))]
        return asked, torch.stack(nodes)

    def best(self, found: Found, users: UserRows) -> Best:
        offsets, leaves, scores = _leaves(found, self.first_leaf)
        reply = self.matcher.match(users, offsets, leaves, scores, TOP_ADS)
        return Best(_mass(offsets, scores), _of_each(reply.offsets, reply.ad_ids))

    def outcome(self, found: Found, users: UserRows, eligible: Tensor, best: Best) -> Outcome:
        """Count what searches found."""
        offsets, leaves, scores = _leaves(found, self.first_leaf)
        num_ads = self.snapshot.ads.num_ads
        reply = self.matcher.match(users, offsets, leaves, scores, num_ads)
        matched = _with_ads(reply, offsets)
        useful = [leads_to_ads(nodes, eligible) for nodes in found.nodes]
        _require_agreement(matched, useful[-1].sum(dim=1).cpu().numpy(), offsets)
        with np.errstate(invalid="ignore"):  # 0 / 0 for a user without ads
            mass_recall = _mass(offsets, np.where(matched, scores, -np.inf)) / best.mass
        useful_sids = np.array([own.sum() for own in _of_each(offsets, matched)], np.int64)
        sids, counts = np.diff(offsets), reply.counts
        return Outcome(
            generated=counts.generated,
            attributes=counts.failed[:, 0],
            sets=counts.failed[:, 1:].sum(axis=1),
            matched=counts.matched,
            sids=sids,
            wasted=sids - useful_sids,
            beams=_per_step([nodes != NO_NODE for nodes in found.nodes]),
            useful=_per_step(useful),
            mass_recall=mass_recall,
            top_recall=_top_recall(best, reply),
        )


def _top_recall(best: Best, reply: MatchedAds) -> Shares:
    returned = _of_each(reply.offsets, reply.ad_ids)
    return np.array(
        [
            np.isin(wanted, own).mean() if len(wanted) else np.nan
            for wanted, own in zip(best.ads, returned, strict=True)
        ]
    )


def bucket_rows(outcome: Outcome) -> list[Row]:
    """Return the means of the paper's buckets."""
    rows = []
    for bucket, least, below in BUCKETS:
        of = (outcome.generated >= least) & (outcome.generated < below)
        rows.append(
            {"bucket": bucket, "users_pct": _percent(of.sum(), len(of)), **means(outcome, of)}
        )
    return rows


def range_rows(
    outcome: Outcome, shares: Shares, ranges: Sequence[tuple[float, float]]
) -> list[Row]:
    """Return the means of users by the share of all ads that they may see, in percent."""
    rows = []
    for least, below in ranges:
        of = (shares >= least) & (shares < below)
        if of.any():
            place = {"from_pct": least, "to_pct": below, "eligible_pct": _mean(shares[of], 3)}
            rows.append({**place, **means(outcome, of)})
    return rows


def means(outcome: Outcome, of: Bools) -> Row:
    """Pool the ads and SIDs of all users for the rates; average the recall over users."""
    generated, sids = int(outcome.generated[of].sum()), int(outcome.sids[of].sum())
    passed = generated - int(outcome.attributes[of].sum())
    matched = int(outcome.matched[of].sum())
    some = bool(of.any())
    return {
        "users": int(of.sum()),
        "generated_ads": _mean(outcome.generated[of]),
        "generated_median": float(np.median(outcome.generated[of])) if some else None,
        "bitmask_pct": _percent(passed, generated),
        "bloom_pct": _percent(matched, passed),  # by the exact sets, not by Bloom bits
        "final_pct": _percent(matched, generated),
        "eligible_ads": _mean(outcome.matched[of]),
        "sids": _mean(outcome.sids[of]),
        "wasted_sids_pct": _percent(int(outcome.wasted[of].sum()), sids),
        "live_beams": outcome.beams[of].mean(axis=0).round(1).tolist() if some else None,
        "useful_beams": outcome.useful[of].mean(axis=0).round(1).tolist() if some else None,
        "score_mass_pct": _mean(100 * outcome.mass_recall[of], 2),
        "top_ads_pct": _mean(100 * outcome.top_recall[of], 2),
    }


def _leaves(
    found: Found, first_leaf: int
) -> tuple[Counts, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the SIDs that searches kept, request by request: offsets, leaves, scores."""
    nodes = found.nodes[-1].cpu().numpy()
    alive = nodes != NO_NODE
    offsets = np.concatenate([[0], alive.sum(axis=1).cumsum()]).astype(np.int64)
    return offsets, nodes[alive] - np.int32(first_leaf), found.scores.cpu().numpy()[alive]


def _with_ads(reply: MatchedAds, offsets: Counts) -> Bools:
    """Return whether an ad of each SID matched.   [SIDs of all requests]"""
    matched = np.zeros(offsets[-1], np.bool_)
    requests = np.repeat(np.arange(len(reply)), np.diff(reply.offsets))
    matched[offsets[requests] + reply.leaf_positions] = True
    return matched


def _require_agreement(matched: Bools, useful: Counts, offsets: Counts) -> None:
    """Compare the masks of eligible nodes with exact matching, which knows nothing of them."""
    for request, (begin, end) in enumerate(pairwise(offsets)):
        found = int(matched[begin:end].sum())
        if found != useful[request]:
            raise DeviceError(
                f"eligible nodes: {useful[request]} SIDs of request {request} lead to an eligible "
                f"ad, and exact matching finds ads of {found}: one of them is wrong"
            )


def _mass(offsets: Counts, scores: npt.NDArray[np.floating[Any]]) -> Shares:
    """Return the sum of the probabilities of each request's SIDs."""
    return np.array([np.exp(own.astype(np.float64)).sum() for own in _of_each(offsets, scores)])


def _of_each(offsets: Counts, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [values[begin:end] for begin, end in pairwise(offsets)]


def _per_step(alive: Sequence[Tensor]) -> Counts:
    return np.stack([each.sum(dim=1).cpu().numpy() for each in alive], axis=1)


def _mean(values: npt.NDArray[np.number[Any]], digits: int = 1) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), digits) if len(known) else None


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None
