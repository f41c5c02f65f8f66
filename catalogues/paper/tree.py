"""The catalogue's prefixes: how many children each has, their tokens, and the ads of each SID."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import (
    Float32Array,
    FloatArray,
    Int64Array,
    bisected,
    in_chunks,
    offsets_of,
)
from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB, PaperKnobs, PaperSpec

_LEVEL_KEYS = 40  # a node's key is its level above this bit and its number below


@dataclass(frozen=True, slots=True)
class PaperTree:
    """Nodes of a level are numbered in SID order, so node i's children follow those of i - 1.

    children[t]  int64 [nodes of level t + 1]     first child at level t + 1 of node i of level t
    """

    level_counts: tuple[int, int, int, int]
    children: tuple[Int64Array, ...]
    ads: Int64Array  # int64 [SIDs + 1]: ads of SID i: ads[i] .. ads[i + 1]
    popularity: Float32Array  # float32 [two-token prefixes]: standard normal

    @property
    def num_ads(self) -> int:
        return int(self.ads[-1])

    def parents(self, level: int, nodes: Int64Array) -> Int64Array:
        """The nodes of level - 1 above nodes of a level, 2 .. 4.   [n] -> [n]"""
        above: Int64Array = np.searchsorted(self.children[level - 1], nodes, side="right") - 1
        return above

    def tokens(self, draws: Draws, level: int, nodes: Int64Array) -> npt.NDArray[np.uint16]:
        """Distinct and ascending among siblings: child j of k has its token in the j-th of k
        stretches of the vocabulary.   [n] -> [n]"""
        if level == 1:
            place, siblings = nodes, np.full(len(nodes), self.level_counts[0])
        else:
            parent = self.parents(level, nodes)
            first = self.children[level - 1][parent]
            place, siblings = nodes - first, self.children[level - 1][parent + 1] - first
        begin, end = place * VOCAB // siblings, (place + 1) * VOCAB // siblings
        keys = _keys(level, nodes)
        tokens: npt.NDArray[np.uint16] = (
            begin + draws.below(Stream.TOKEN, keys, end - begin)
        ).astype(np.uint16)
        return tokens

    def sids(self, draws: Draws, sids: Int64Array) -> npt.NDArray[np.uint16]:
        """The tokens of ascending SID numbers.   [n] -> [n, 4]"""
        tokens = np.empty((len(sids), SID_LENGTH), np.uint16)
        nodes, row_of = sids, np.arange(len(sids))
        for level in range(SID_LENGTH, 0, -1):
            # Neighbours share their prefixes: each is drawn once.
            fresh = np.concatenate([[True], nodes[1:] != nodes[:-1]])
            row_of = (np.cumsum(fresh) - 1)[row_of]
            nodes = nodes[fresh]
            tokens[:, level - 1] = self.tokens(draws, level, nodes)[row_of]
            if level > 1:
                nodes = self.parents(level, nodes)
        return tokens


def make_tree(spec: PaperSpec, draws: Draws, threads: int) -> PaperTree:
    knobs, counts = spec.knobs, spec.level_counts
    own = [_normals(draws, Stream.POPULARITY, n, counts[n - 1], threads) for n in (1, 2, 3)]
    # The cube root of a uniform number is 3/4 on average, as 384 is of 512.
    first_weights = draws.uniform(Stream.FAN_OUT, _keys(1, np.arange(counts[0]))) ** (1 / 3)
    children = [offsets_of(_apportion(counts[1], first_weights, draws, 1))]
    for level, spread in ((2, knobs.spread_3), (3, knobs.spread_4)):
        latent = _normals(draws, Stream.FAN_OUT, level, counts[level - 1], threads)
        latent *= np.float32(spread * np.sqrt(1 - knobs.popular_grow**2))
        latent += np.float32(spread * knobs.popular_grow) * own[level - 1]
        children.append(offsets_of(_apportion(counts[level], np.exp(latent), draws, level)))
    first, second, third, of_sid = (np.float32(np.sqrt(s)) for s in knobs.popularity_shares)
    above = np.repeat(first * own[0], np.diff(children[0])) + second * own[1]
    pair = above / np.float32(np.hypot(first, second))
    above = np.repeat(above, np.diff(children[1])) + third * own[2]
    latents = np.empty(spec.num_sids, np.float32)

    def latent_of(sids: Int64Array) -> Float32Array:
        parent = np.searchsorted(children[2], sids, side="right") - 1
        latent: Float32Array = above[parent]
        latent += of_sid * draws.normal(Stream.POPULARITY, _keys(4, sids))
        return latent

    in_chunks(latents, latent_of, threads)
    sizes = _ads_per_sid(latents, knobs, threads)
    return PaperTree(counts, (np.zeros(0, np.int64), *children), offsets_of(sizes), pair)


def _keys(level: int, nodes: Int64Array) -> Int64Array:
    return nodes | np.int64(level << _LEVEL_KEYS)


def _normals(draws: Draws, stream: Stream, level: int, count: int, threads: int) -> Float32Array:
    out = np.empty(count, np.float32)
    in_chunks(out, lambda nodes: draws.normal(stream, _keys(level, nodes)), threads)
    return out


def _ads_per_sid(latents: Float32Array, knobs: PaperKnobs, threads: int) -> npt.NDArray[np.int32]:
    """Sizes by a SID's quantile, which a sample estimates: popular prefixes have more SIDs than
    others, so the latent values are not quite normal."""
    sample = np.sort(latents[:: max(1, len(latents) >> 20)])
    places = (np.arange(len(sample)) + 0.5) / len(sample)
    sizes = np.empty(len(latents), np.int32)

    def size_of(sids: Int64Array) -> npt.NDArray[np.int32]:
        return _size_at(np.interp(latents[sids], sample, places), knobs)

    in_chunks(sizes, size_of, threads)
    return sizes


def _size_at(place: FloatArray, knobs: PaperKnobs) -> npt.NDArray[np.int32]:
    """The quantile function of ads per SID."""
    rest = np.maximum(1.0 - place, 1e-12) / (1.0 - knobs.two_ads)
    tail = np.minimum(np.ceil(2.0 * rest ** (-1.0 / knobs.tail_power)), knobs.most_ads)
    sizes = np.where(place < knobs.one_ad, 1.0, np.where(place < knobs.two_ads, 2.0, tail))
    return sizes.astype(np.int32)


def _apportion(
    total: int, weights: npt.NDArray[np.floating], draws: Draws, level: int
) -> npt.NDArray[np.int32]:
    """Divide `total` by weight into 1 to VOCAB each, rounded at random, exactly `total` in all."""
    sample = weights[:: max(1, len(weights) >> 20)]

    def too_few(scale: float) -> bool:
        mean = np.clip(sample * scale + 0.5, 1, VOCAB).mean()
        return bool(mean * len(weights) < total)

    low, _ = bisected(too_few, VOCAB / float(weights.min()), 50)
    rounding = draws.uniform(Stream.FAN_OUT, _keys(level, np.arange(len(weights))) + (1 << 36))
    counts = np.clip(np.floor(weights * low + rounding), 1, VOCAB).astype(np.int32)
    step = 1 if total > int(counts.sum()) else -1
    while missing := abs(total - int(counts.sum())):
        able = np.flatnonzero(counts < VOCAB if step > 0 else counts > 1)
        counts[able[:: max(1, len(able) // missing)][:missing]] += step
    return counts
