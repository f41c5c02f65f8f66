"""Items whose structure is known, and how well clusters agree with it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


def tree_items(
    items: int,
    dims: int,
    branches: Sequence[int],
    lengths: Sequence[float],
    noise: float,
    seed: int,
) -> tuple[Float32, Int64]:
    """Return vectors, and each item's node by depth.   [items, dims], [items, depths]

    An item's vector is the sum of a random direction for each node above it, of the given lengths,
    and noise. Children of different nodes have different directions.
    """
    rng = np.random.default_rng(seed)
    node = np.zeros(items, np.int64)
    vectors = rng.standard_normal((items, dims), np.float32) * np.float32(noise / np.sqrt(dims))
    nodes = np.empty((items, len(branches)), np.int64)
    for depth, (children, length) in enumerate(zip(branches, lengths, strict=True)):
        node = node * children + rng.integers(children, size=items)
        directions = rng.standard_normal((int(node.max()) + 1, dims), np.float32)
        vectors += directions[node] * np.float32(length / np.sqrt(dims))
        nodes[:, depth] = node
    return vectors, nodes


def mutual_information(one: Int64, other: Int64) -> float:
    """Return the normalised mutual information of two labellings: 1 if they are the same but for
    names, 0 if they are independent."""
    first, second = (np.unique(each, return_inverse=True)[1] for each in (one, other))
    both = first * (int(second.max()) + 1) + second
    alone = _entropy(first) + _entropy(second)
    return 2 * (alone - _entropy(np.unique(both, return_inverse=True)[1])) / alone


def prefix_numbers(tokens: npt.NDArray[np.integer]) -> Int64:
    """Return a number for each distinct row.   [items, tokens] -> [items]"""
    numbers: Int64 = np.unique(tokens, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def _entropy(labels: Int64) -> float:
    shares = np.bincount(labels) / len(labels)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())
