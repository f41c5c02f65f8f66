"""Learned tokens for a catalogue: an item per SID, a vector per item, residual k-means over those.

The vector of an item is the sum of what it is: family, topic, product, brand and product line, and
a little noise. So items that a person finds alike share their first tokens, even across the
brands and topics that the plain hierarchy would keep apart.
"""

from dataclasses import replace

import numpy as np

from grace.catalogues.synth.arrays import FloatArray, Int64Array, frozen
from grace.catalogues.synth.residual_kmeans import residual_codes, told_apart
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import CatalogueSpec, Stream
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS

DIMENSION = 32

# Root mean square length of each part of an item's vector.
_FAMILY, _TOPIC, _PRODUCT, _BRAND, _LINE, _NOISE = 0.8, 1.0, 0.6, 0.6, 0.35, 0.15

_FAMILIES = tuple(dict.fromkeys(topic.family for topic in TOPICS))
TOPIC_FAMILY = np.array([_FAMILIES.index(topic.family) for topic in TOPICS])


def learn_tokens(spec: CatalogueSpec, tree: SidTree) -> SidTree:
    """The tree with learned tokens, its SIDs in the new ascending order."""
    vectors = item_vectors(tree, spec.rng(Stream.VECTORS))
    *learned, last = spec.vocab_sizes
    codes = residual_codes(vectors, tuple(learned), spec.rng(Stream.CLUSTERS))
    sids = told_apart(codes, last)
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
