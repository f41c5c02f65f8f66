"""A stand-in for the model: hierarchical scores from popularity and each user's preferences.

A child's logit is made of the number of ads below it and of a preference fixed for (seed, user,
node). The log-softmax over siblings is the token's score, and a SID's score their sum.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.catalogues.paper.draws import Draws, Stream
from grace.index.snapshot import Snapshot

BEAMS = (1, 512, 1024, 1024)
NUM_SIDS = 1024


@dataclass(frozen=True, slots=True)
class GeneratorKnobs:
    popularity: float = 0.52  # weight of log(ads below), for the average user
    popularity_spread: float = 0.065  # its standard deviation over users: some follow the crowd
    liking: float = 2.0  # standard deviation of a user's liking of a node


@dataclass(frozen=True, slots=True)
class Generator:
    """
    node_offsets  [internal nodes + 1]   as in a snapshot: child entry j leads to node j + 1
    log_ads       float32 [nodes]        logarithm of the ads below
    """

    node_offsets: npt.NDArray[np.integer]
    log_ads: npt.NDArray[np.float32]
    draws: Draws
    knobs: GeneratorKnobs

    def popularity_weight(self, user: int) -> float:
        """Return what log(ads below) weighs for a user."""
        taste = float(self.draws.normal(Stream.TASTE, np.array([user]))[0])
        return self.knobs.popularity + self.knobs.popularity_spread * taste


def generator_of(snapshot: Snapshot, draws: Draws, knobs: GeneratorKnobs) -> Generator:
    trie = snapshot.trie
    log_ads = np.empty(trie.num_entries + 1, np.float32)
    first_ads: npt.NDArray[np.integer] = snapshot.ads.ad_offsets
    log_ads[trie.first_leaf :] = np.log(np.diff(first_ads))
    for level in range(trie.sid_length - 1, -1, -1):
        begin, end = trie.level_starts[level], trie.level_starts[level + 1]
        children = trie.node_offsets[begin : end + 1].astype(np.int64) + 1
        first_ads = first_ads[children - trie.level_starts[level + 1]]
        log_ads[begin:end] = np.log(np.diff(first_ads))
    return Generator(trie.node_offsets, log_ads, draws, knobs)
