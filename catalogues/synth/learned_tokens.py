"""Learned Semantic IDs: a vector for each item, and residual k-means over the vectors, as in TIGER.

The vector of an item is the sum of its family, topic, product, brand and product line, and a little
noise. So similar items share their first tokens, even across the brands and topics that the plain
hierarchy keeps apart. One more token counts items that share all learned tokens.

Only `residual_codes` imports torch, so a light installation can make the other catalogues.
"""

from dataclasses import replace

import numpy as np

from grace.catalogues.arrays import FloatArray, Int64Array, frozen, offsets_of, position_in_run
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import CatalogueSpec, Stream
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS
from grace.configs.errors import InputError

_BALANCE = 2.0


def residual_codes(
    vectors: FloatArray, sizes: tuple[int, ...], rng: np.random.Generator
) -> Int64Array:
    """Return a token per level, level t below sizes[t].   [items, dim] -> [items, levels]"""
    from grace.model.codebook.kmeans import learn_codebook  # noqa: PLC0415

    points = vectors.astype(np.float32)
    shuffled = points[rng.permutation(len(points))]
    codebook = learn_codebook(shuffled, sizes, _BALANCE, int(rng.integers(1 << 62)))
    tokens: Int64Array = codebook.encode(points)[0].astype(np.int64)
    return tokens


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
