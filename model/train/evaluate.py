"""How well a model foretells the newest event of users it has not seen, beside simple rules.

A recommender is judged by the rank it gives to the true SID, from 0; recall@k is the share of users
whose rank is below k. A rule that does not list the true SID at all gives it the rank ABSENT.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from grace.configs.generation import BeamProfile
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.model.definition.beam_search import beam_search
from grace.model.definition.model import Model
from grace.model.train.batches import HistoryBatches
from grace.model.train.interactions import Interactions

__all__ = [
    "ABSENT",
    "CUTOFFS",
    "Skew",
    "follower_ranks",
    "model_ranks",
    "popularity_ranks",
    "random_recall",
    "recall",
    "skew_of",
]

Int64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]  # (users done, users in all)

CUTOFFS = (1, 5, 10, 50)
ABSENT = np.iinfo(np.int64).max

_USERS_PER_BATCH = 64


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly events fall on SIDs."""

    gini: float  # 0: all alike; towards 1: one SID has everything
    top_1_percent_share: float  # of the events, on the most popular SIDs
    top_10_percent_share: float


def recall(ranks: Int64, cutoffs: Sequence[int] = CUTOFFS) -> dict[int, float]:
    return {k: float((ranks < k).mean()) for k in cutoffs}


def random_recall(num_leaves: int, cutoffs: Sequence[int] = CUTOFFS) -> dict[int, float]:
    """What k different SIDs, drawn blindly, reach on average."""
    return {k: min(k / num_leaves, 1.0) for k in cutoffs}


def popularity_ranks(counts: Int64, truth: Int64) -> Int64:
    """Everybody is shown what training users met most; ties in SID order.   [users]"""
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[truth]


def follower_ranks(log: Interactions, events: Int64) -> Int64:
    """Everybody is shown what training users met most right after the same SID.   [users]"""
    pairs, counts = np.unique(log.transitions(), axis=0, return_counts=True)
    order = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    before, after = pairs[order].T
    begin = np.searchsorted(before, log.leaves[events - 1])
    end = np.searchsorted(before, log.leaves[events - 1], side="right")
    ranks = np.full(len(events), ABSENT)
    for user, (low, high) in enumerate(zip(begin, end, strict=True)):
        found = np.flatnonzero(after[low:high] == log.leaves[events[user]])
        if len(found):
            ranks[user] = found[0]
    return ranks


def model_ranks(
    model: Model,
    index: DecodeIndex,
    batches: HistoryBatches,
    events: Int64,
    profile: BeamProfile,
    progress: Progress,
) -> Int64:
    """Everybody is shown what the product's own beam search generates.   [users]"""
    ops = load_ops(index.csr_tokens.device)
    ranks = np.full(len(events), ABSENT)
    for start in range(0, len(events), _USERS_PER_BATCH):
        rows = events[start : start + _USERS_PER_BATCH]
        with torch.inference_mode():
            context = model.user_context(batches.inputs(rows))
        generated = beam_search(
            model.decoder, context, _anybody(len(rows), index), index, profile, ops
        )
        generated.require_finite()
        is_true = generated.leaves.numpy() == batches.log.leaves[rows, np.newaxis]
        user, rank = np.nonzero(is_true)
        ranks[start + user] = rank
        progress(start + len(rows), len(events))
    return ranks


def skew_of(counts: Int64) -> Skew:
    ascending = np.sort(counts)
    total, size = int(ascending.sum()), len(ascending)
    weighted = float((np.arange(1, size + 1) * ascending).sum())
    return Skew(
        gini=2 * weighted / (size * total) - (size + 1) / size,
        top_1_percent_share=_share_of_top(ascending, 0.01),
        top_10_percent_share=_share_of_top(ascending, 0.10),
    )


def _share_of_top(ascending: Int64, share: float) -> float:
    top = max(1, round(share * len(ascending)))
    return float(ascending[-top:].sum() / ascending.sum())


def _anybody(users: int, index: DecodeIndex) -> UserTensors:
    """User rows for an index without matchers, which looks at none."""
    return UserTensors(index.csr_tokens.new_zeros((users, 0), dtype=torch.int64), ())
