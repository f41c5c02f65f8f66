"""How well a model predicts the newest event of held-out users, compared with simple rules.

A recommender ranks the true SID of each user, from 0; recall@k is the share of users whose rank is
below k. A true SID that a recommender does not list has the rank ABSENT.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from grace.configs.generation import BeamProfile
from grace.index.snapshot import Snapshot
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.definition.beam_search import beam_search
from grace.model.definition.model import Model
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.loop import Progress, reproducible

Int64 = npt.NDArray[np.int64]

CUTOFFS = (1, 5, 10, 50)
ABSENT = np.iinfo(np.int64).max

_USERS_PER_BATCH = 64


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly events are distributed over SIDs.

    gini                   0 if all SIDs have equally many, towards 1 if one SID has all
    top_<p>_percent_share  the share of the events on the p % most popular SIDs
    """

    gini: float
    top_1_percent_share: float
    top_10_percent_share: float


def evaluate(
    checkpoint: Path,
    catalogue: Snapshot,
    log: Interactions,
    profile: BeamProfile,
    progress: Progress,
) -> dict[str, dict[int, float]]:
    """Return the recall of held-out users' newest events, by recommender and cut-off.

    The recommenders are the checkpoint's model in the product's own beam search, and three rules:
    `followers`, `popularity` and `random`.
    """
    model = load_checkpoint(checkpoint)
    batches = HistoryBatches(log, history_input(model.spec))
    events = log.last_events()
    index = DecodeIndex.of(catalogue, torch.device("cpu"))
    with reproducible():
        generated = model_ranks(model, index, batches, events, profile, progress)
    counts = log.leaf_counts(catalogue.trie.num_leaves)
    within = tuple(k for k in CUTOFFS if k <= profile.num_sids)
    return {
        "model": recall(generated, within),
        "followers": recall(follower_ranks(log, events)),
        "popularity": recall(popularity_ranks(counts, log.leaves[events])),
        "random": random_recall(catalogue.trie.num_leaves),
    }


def recall(ranks: Int64, cutoffs: Sequence[int] = CUTOFFS) -> dict[int, float]:
    return {k: float((ranks < k).mean()) for k in cutoffs}


def random_recall(num_leaves: int, cutoffs: Sequence[int] = CUTOFFS) -> dict[int, float]:
    """Return the expected recall of k distinct SIDs drawn at random."""
    return {k: min(k / num_leaves, 1.0) for k in cutoffs}


def popularity_ranks(counts: Int64, truth: Int64) -> Int64:
    """Rank by how often training users met a SID, ties in SID order.   -> [users]"""
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[truth]


def follower_ranks(log: Interactions, events: Int64) -> Int64:
    """Rank by how often a SID came right after the user's last one in training.   -> [users]"""
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
    """Rank in the order that the product's own beam search generates.   -> [users]"""
    ops = load_ops(index.csr_tokens.device)
    ranks = np.full(len(events), ABSENT)
    for start in range(0, len(events), _USERS_PER_BATCH):
        rows = events[start : start + _USERS_PER_BATCH]
        with torch.inference_mode():
            context = model.user_context(batches.inputs(rows))
        # The index has no matchers, so nothing reads the users' rows.
        users = UserTensors(index.csr_tokens.new_zeros((len(rows), 0), dtype=torch.int64), ())
        generated = beam_search(model.decoder, context, users, index, profile, ops)
        generated.require_finite()
        is_true = generated.leaves.numpy() == batches.log.leaves[rows, np.newaxis]
        user, rank = np.nonzero(is_true)
        ranks[start + user] = rank
        progress("evaluate", start + len(rows), len(events), "")
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
