"""A stand-in for the model: hierarchical scores from popularity and each user's preferences.

A child's logit is made of the number of ads below it and of a preference fixed for (seed, user,
node). The log-softmax over siblings is the token's score. The search is GRACE's: a number of beams
for each step, summed scores, and the best of all candidates that the given test admits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import BoolArray, FloatArray, Int64Array
from grace.catalogues.paper.draws import Draws, Stream
from grace.index.matchers.admission import admitted_entries
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserRows

BEAMS = (1, 512, 1024, 1024)
NUM_SIDS = 1024

Admit = Callable[[Int64Array, Int64Array], BoolArray]
"""(first child entry [beams], last + 1 [beams]) -> bool, for each entry of these runs in turn."""


@dataclass(frozen=True, slots=True)
class GeneratorKnobs:
    popularity: float = 0.52  # weight of log(ads below), for the average user
    popularity_spread: float = 0.065  # its standard deviation over users: some follow the crowd
    liking: float = 2.0  # standard deviation of a user's liking of a node


@dataclass(frozen=True, slots=True)
class Generated:
    leaves: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    alive: tuple[int, ...]  # beams that each step kept


@dataclass(frozen=True, slots=True)
class Generator:
    """
    node_offsets  [internal nodes + 1]   as in a snapshot: child entry j leads to node j + 1
    log_ads       float32 [nodes]        logarithm of the ads below
    """

    node_offsets: npt.NDArray[np.integer]
    log_ads: npt.NDArray[np.float32]
    first_leaf: int
    draws: Draws
    knobs: GeneratorKnobs

    def generate(
        self, user: int, admit: Admit, beams: Sequence[int] = BEAMS, num_sids: int = NUM_SIDS
    ) -> Generated:
        weight = self.popularity_weight(user)
        nodes, scores = np.zeros(1, np.int64), np.zeros(1)
        alive = []
        for keep in (*beams[1:], num_sids):
            begin: Int64Array = self.node_offsets[nodes].astype(np.int64)
            end: Int64Array = self.node_offsets[nodes + 1].astype(np.int64)
            sizes = end - begin
            starts = np.cumsum(sizes) - sizes
            below: Int64Array = np.arange(sizes.sum()) + np.repeat(begin - starts, sizes) + 1
            token_scores = self._log_softmax(user, weight, below, starts, sizes)
            total = np.repeat(scores, sizes) + token_scores
            admitted = np.flatnonzero(admit(begin, end))
            if len(admitted) > keep:
                best = np.argpartition(-total[admitted], keep - 1)[:keep]
                admitted = np.sort(admitted[best])
            nodes, scores = below[admitted], total[admitted]
            alive.append(len(nodes))
        order = np.argsort(-scores, kind="stable")
        leaves = (nodes[order] - self.first_leaf).astype(np.int32)
        return Generated(leaves, scores[order].astype(np.float32), tuple(alive))

    def popularity_weight(self, user: int) -> float:
        """Return what log(ads below) weighs for a user."""
        taste = float(self.draws.normal(Stream.TASTE, np.array([user]))[0])
        return self.knobs.popularity + self.knobs.popularity_spread * taste

    def _log_softmax(
        self, user: int, weight: float, nodes: Int64Array, starts: Int64Array, sizes: Int64Array
    ) -> FloatArray:
        """Over each run of siblings."""
        liking = self.draws.normal(Stream.AFFINITY, nodes | np.int64(user << 32))
        logits = (weight * self.log_ads[nodes] + self.knobs.liking * liking).astype(np.float64)
        if len(nodes) == 0:
            return logits
        logits -= np.repeat(np.maximum.reduceat(logits, starts), sizes)
        sums = np.add.reduceat(np.exp(logits), starts)
        normalised: FloatArray = logits - np.repeat(np.log(sums), sizes)
        return normalised


def every_entry(begin: Int64Array, end: Int64Array) -> BoolArray:
    """Admit every prefix of the catalogue: constrained decoding only."""
    return np.ones(int((end - begin).sum()), np.bool_)


def admit_for(snapshot: Snapshot, users: UserRows, request: int) -> Admit:
    """Admit by the snapshot's own decode-time test, in the mode in which it was built."""

    def admit(begin: Int64Array, end: Int64Array) -> BoolArray:
        runs = [
            admitted_entries(snapshot, users, request, range(first, last))
            for first, last in zip(begin.tolist(), end.tolist(), strict=True)
        ]
        return np.concatenate([np.zeros(0, np.bool_), *runs])

    return admit


def generator_of(snapshot: Snapshot, draws: Draws, knobs: GeneratorKnobs) -> Generator:
    trie = snapshot.trie
    log_ads = np.empty(trie.num_nodes, np.float32)
    first_ads: npt.NDArray[np.integer] = snapshot.ads.ad_offsets
    log_ads[trie.first_leaf :] = np.log(np.diff(first_ads))
    for level in range(trie.sid_length - 1, -1, -1):
        begin, end = trie.level_starts[level], trie.level_starts[level + 1]
        children = trie.node_offsets[begin : end + 1].astype(np.int64) + 1
        first_ads = first_ads[children - trie.level_starts[level + 1]]
        log_ads[begin:end] = np.log(np.diff(first_ads))
    return Generator(trie.node_offsets, log_ads, trie.first_leaf, draws, knobs)
