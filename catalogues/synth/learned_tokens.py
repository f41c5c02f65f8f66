"""Learned Semantic IDs: a vector for each item, and residual k-means over the vectors, as in TIGER.

The vector of an item is the sum of its family, topic, product, brand and product line, and a little
noise. So similar items share their first tokens, even across the brands and topics that the plain
hierarchy keeps apart. A level's token is the number of the nearest centre; the next level clusters
the residuals, the vectors minus their centres. One more token counts items that share all learned
tokens.
"""

from dataclasses import dataclass, replace

import numpy as np

from grace.catalogues.arrays import (
    FloatArray,
    Int64Array,
    frozen,
    offsets_of,
    pick_by_share,
    position_in_run,
)
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import CatalogueSpec, Stream
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS
from grace.configs.errors import InputError

MAX_ROUNDS = 50  # of Lloyd's algorithm; a few thousand points settle within 20


@dataclass(frozen=True, slots=True)
class Clusters:
    centres: FloatArray  # [k, dim]
    labels: Int64Array  # [points]


def residual_codes(
    vectors: FloatArray, sizes: tuple[int, ...], rng: np.random.Generator
) -> Int64Array:
    """Return a token per level, level t below sizes[t].   [items, dim] -> [items, levels]"""
    residual = vectors
    codes = np.empty((len(vectors), len(sizes)), np.int64)
    for level, size in enumerate(sizes):
        clusters = settle(residual, seed_centres(residual, size, rng))
        codes[:, level] = clusters.labels
        residual = residual - clusters.centres[clusters.labels]
    return codes


def number_duplicates(codes: Int64Array, size: int) -> Int64Array:
    """Append a last token, below `size`: 0, 1, 2.. in item order among equal codes."""
    _, group, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    if counts.max() > size:
        raise InputError(
            f"{counts.max()} items have equal learned tokens, but the last position has {size}: "
            "choose fewer SIDs or a larger vocabulary"
        )
    by_group = np.argsort(group.reshape(-1), kind="stable")
    last = np.empty(len(codes), np.int64)
    last[by_group] = position_in_run(offsets_of(counts))
    return np.column_stack([codes, last])


def seed_centres(points: FloatArray, k: int, rng: np.random.Generator) -> FloatArray:
    """k-means++: draw points in proportion to their squared distance from those drawn before."""
    if len(points) < k:
        raise InputError(f"{k} clusters of {len(points)} items: choose more SIDs")
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < k:
        # If all points are drawn, any one will do.
        shares = nearest if nearest.any() else np.ones(len(points))
        chosen.append(int(pick_by_share(rng, shares, 1)[0]))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def settle(points: FloatArray, centres: FloatArray) -> Clusters:
    """Lloyd's algorithm: labels of the nearest centres, centres as means, until nothing moves.

    Ties go to the lower label. A centre without points moves to the point farthest from its own.
    """
    labels = np.full(len(points), -1)
    for _ in range(MAX_ROUNDS):
        distances = _squared_distances(points, centres)
        moved = np.argmin(distances, axis=1)
        if np.array_equal(moved, labels):
            break
        labels = moved
        served = distances[np.arange(len(points)), labels]
        centres = _means(points, labels, centres, served)
    return Clusters(centres, labels)


def _means(
    points: FloatArray, labels: Int64Array, centres: FloatArray, served: FloatArray
) -> FloatArray:
    counts = np.bincount(labels, minlength=len(centres))
    sums = np.zeros_like(centres)
    np.add.at(sums, labels, points)
    means: FloatArray = sums / np.maximum(counts, 1)[:, np.newaxis]
    empty = np.flatnonzero(counts == 0)
    means[empty] = points[np.argsort(-served, kind="stable")[: len(empty)]]
    return means


def _squared_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """[points, centres], one centre at a time: exact zeros, and a fixed order of summation."""
    distances = np.empty((len(points), len(centres)))
    for number, centre in enumerate(centres):
        distances[:, number] = np.square(points - centre).sum(axis=1)
    return distances


DIMENSION = 32

# Root mean square length of each part of an item's vector.
_FAMILY, _TOPIC, _PRODUCT, _BRAND, _LINE, _NOISE = 0.8, 1.0, 0.6, 0.6, 0.35, 0.15

_FAMILIES = tuple(dict.fromkeys(topic.family for topic in TOPICS))
TOPIC_FAMILY = np.array([_FAMILIES.index(topic.family) for topic in TOPICS])


def learn_tokens(spec: CatalogueSpec, tree: SidTree) -> SidTree:
    """Return the tree with learned tokens, its SIDs in their new ascending order."""
    vectors = item_vectors(tree, spec.rng(Stream.VECTORS))
    *learned, last = spec.vocab_sizes
    codes = residual_codes(vectors, tuple(learned), spec.rng(Stream.CLUSTERS))
    sids = number_duplicates(codes, last)
    order = np.lexsort(sids.T[::-1])
    return replace(
        tree,
        sids=frozen(sids[order].astype(np.uint16)),
        sid_line=frozen(tree.sid_line[order]),
        sid_variant=frozen(tree.sid_variant[order]),
    )


def item_vectors(tree: SidTree, rng: np.random.Generator) -> FloatArray:
    """[num_sids, DIMENSION]"""
    line = tree.sid_line
    brand = tree.line_brand[line]
    topic = tree.brand_topic[brand]
    product = topic * PRODUCTS_PER_TOPIC + tree.line_product[line]
    parts: list[tuple[float, Int64Array]] = [
        (_FAMILY, TOPIC_FAMILY[topic]),
        (_TOPIC, topic),
        (_PRODUCT, product),
        (_BRAND, brand),
        (_LINE, line),
        (_NOISE, np.arange(len(line))),
    ]
    vectors = np.zeros((len(line), DIMENSION))
    for length, which in parts:
        directions = rng.standard_normal((int(which.max()) + 1, DIMENSION))
        vectors += length / np.sqrt(DIMENSION) * directions[which]
    return vectors
