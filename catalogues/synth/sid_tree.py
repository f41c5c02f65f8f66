"""The catalogue's SIDs: a tree with the uneven fan-out of a real, residually quantised catalogue.

Token 1 is a topic (or one price tier of a topic), token 2 a brand, token 3 a product line, token 4
a cluster of its ads. Nearly all first tokens exist, many of the second, a few children of each
pair, and fewer still below: popular topics and brands have more of everything.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from grace.catalogues.arrays import (
    FloatArray,
    Int64Array,
    UInt16Array,
    bisected,
    frozen,
    offsets_of,
    position_in_run,
)
from grace.catalogues.synth.spec import CatalogueSpec
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS

_BRAND_SPREAD = 0.5  # sigma of the log-normal sizes of brands, in product lines
_LINE_SPREAD = 0.8  # and of product lines, in SIDs


@dataclass(frozen=True, slots=True)
class SidTree:
    """Every SID's place in the hierarchy; SIDs are in ascending order.

    As made here, prefixes of 1, 2 and 3 tokens are tiers, brands and lines. Learned tokens
    (catalogues/synth/learned_tokens.py) keep the hierarchy and follow it only roughly.
    """

    sids: UInt16Array  # [num_sids, 4]
    tier_topic: Int64Array  # [tiers]
    brand_tier: Int64Array  # [brands]
    line_brand: Int64Array  # [lines]
    line_product: Int64Array  # [lines] which of its topic's products
    sid_line: Int64Array  # [num_sids]
    sid_variant: Int64Array  # [num_sids] any number; it chooses the detail in a title
    brand_lines: Int64Array  # [brands + 1] offsets into the lines

    @property
    def brand_topic(self) -> Int64Array:
        return self.tier_topic[self.brand_tier]

    @property
    def sid_topic(self) -> Int64Array:
        return self.brand_topic[self.line_brand[self.sid_line]]


def make_sid_tree(spec: CatalogueSpec, rng: np.random.Generator) -> SidTree:
    vocab = spec.vocab_sizes
    tiers = np.sort(rng.choice(vocab[0], spec.num_tiers, replace=False))
    tier_topic = tiers * len(TOPICS) // vocab[0]
    brands_in = apportion(spec.num_brands, _tier_weights(tier_topic, rng), vocab[1])
    brand_tier, second = _children(brands_in, vocab[1], rng)
    brand_size = rng.lognormal(0, _BRAND_SPREAD, spec.num_brands)
    lines_in = apportion(spec.num_lines, brand_size, vocab[2])
    line_brand, third = _children(lines_in, vocab[2], rng)
    line_size = rng.lognormal(0, _LINE_SPREAD, spec.num_lines)
    sid_line, fourth = _children(apportion(spec.num_sids, line_size, vocab[3]), vocab[3], rng)

    sids = np.empty((spec.num_sids, 4), np.uint16)
    sid_brand = line_brand[sid_line]
    sids[:, 0] = tiers[brand_tier[sid_brand]]
    sids[:, 1] = second[sid_brand]
    sids[:, 2] = third[sid_line]
    sids[:, 3] = fourth
    return SidTree(
        frozen(sids),
        frozen(tier_topic),
        frozen(brand_tier),
        frozen(line_brand),
        frozen(third % PRODUCTS_PER_TOPIC),
        frozen(sid_line),
        frozen(fourth),
        offsets_of(lines_in),
    )


def apportion(total: int, weights: FloatArray, cap: int) -> Int64Array:
    """Divide `total` by weight into whole numbers from 1 to `cap`, exactly `total` in all."""
    count = len(weights)
    if not count <= total <= count * cap:
        raise ValueError(f"cannot share {total} among {count}, 1 to {cap} each")
    spare, room = total - count, float(cap - 1)
    most = room / float(weights.min())
    scale, _ = bisected(lambda scale: np.minimum(weights * scale, room).sum() <= spare, most, 60)
    share = np.minimum(weights * scale, room)
    extra = share.astype(np.int64)
    left_over = spare - int(extra.sum())
    # The largest fractions first; a share that is at its cap has none.
    fractions = np.where(extra < cap - 1, share - extra, -1.0)
    extra[np.argsort(-fractions, kind="stable")[:left_over]] += 1
    return extra + 1


def _tier_weights(tier_topic: Int64Array, rng: np.random.Generator) -> FloatArray:
    """A flattened Zipf law over topics in random order; the tiers of a topic differ a little."""
    popularity = 1.0 / (rng.permutation(len(TOPICS)) + 12.0)
    return popularity[tier_topic] * rng.lognormal(0, 0.3, len(tier_topic))


def _children(
    counts: Int64Array, vocab: int, rng: np.random.Generator
) -> tuple[Int64Array, Int64Array]:
    """(parent, token) of every child: `counts[i]` distinct tokens for parent i, ascending.

    The tokens of a parent walk the vocabulary in a random stride that is coprime to it: distinct
    without drawing a permutation of the vocabulary for each of a million parents.
    """
    strides: Int64Array = np.array(
        [stride for stride in range(1, vocab + 1) if gcd(stride, vocab) == 1]
    )
    stride = strides[rng.integers(len(strides), size=len(counts))]
    start = rng.integers(vocab, size=len(counts))
    parent: Int64Array = np.repeat(np.arange(len(counts)), counts)
    token: Int64Array = (
        start[parent] + stride[parent] * position_in_run(offsets_of(counts))
    ) % vocab
    by_token: Int64Array = np.sort(parent * vocab + token)
    return parent, by_token - parent * vocab
