"""Codebooks: the codes of vectors against plain sums, balance, and known hierarchies."""

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.index.codebook.codebook import Level, codes_of
from grace.model.codebook.kmeans import learn_codebook, learn_level
from support.known_trees import mutual_information, prefix_numbers, tree_items


def cloud(rows: int, dims: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, dims), np.float32))


def plain_code(vector: list[float], level: Level) -> int:
    costs = [
        sum((a - b) ** 2 for a, b in zip(vector, centre, strict=True)) + price
        for centre, price in zip(level.centres.tolist(), level.prices.tolist(), strict=True)
    ]
    return costs.index(min(costs))


def halfway(level: Level) -> Tensor:
    """Return points that are equally far from two centres, but for rounding."""
    return torch.from_numpy((level.centres[:-1] + level.centres[1:]) / 2)


@pytest.mark.parametrize("dims", [1, 7, 63])
def test_codes_are_those_of_plain_sums(dims: int) -> None:
    level = Level((cloud(37, dims, 1) + 5).numpy(), cloud(37, 1, 2)[:, 0].abs().numpy())
    points = torch.cat([cloud(211, dims, 3) + 5, halfway(level)])
    found = codes_of(points.numpy(), level).tolist()
    assert found == [plain_code(x, level) for x in points.tolist()]


def test_ties_go_to_the_lower_code() -> None:
    centres = np.array([[2], [0], [2], [4]], np.float32)
    level = Level(centres, np.array([0, 0, 0, 1], np.float32))
    points = np.array([[2], [1], [4], [3]], np.float32)
    assert codes_of(points, level).tolist() == [0, 0, 3, 0]


def test_a_vector_has_the_same_sid_alone_and_in_any_batch() -> None:
    points = cloud(1511, 33, 5)
    codebook = learn_codebook(points.numpy(), (31, 17, 9), 1.5, seed=2)
    hard = torch.cat([points[:211], halfway(codebook.levels[0])]).numpy()
    together = codebook.encode(hard)[0]
    alone = np.concatenate([codebook.encode(row[None])[0] for row in hard])
    backwards = codebook.encode(hard[::-1])[0][::-1]
    assert np.array_equal(together, alone)
    assert np.array_equal(together, backwards)


def test_equal_seeds_give_equal_codebooks_on_any_number_of_threads() -> None:
    points, learned = cloud(5003, 19, 7), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        learned.append(learn_codebook(points.numpy(), (29, 29), 2.0, seed=3))
    other = learn_codebook(points.numpy(), (29, 29), 2.0, seed=4)
    for one, two, three in zip(*(each.levels for each in (*learned, other)), strict=True):
        assert np.array_equal(one.centres, two.centres)
        assert np.array_equal(one.prices, two.prices)
        assert not np.array_equal(one.centres, three.centres)


def fullest(points: Tensor, level: Level, codes: int) -> float:
    return float(np.bincount(codes_of(points.numpy(), level)).max()) * codes / len(points)


def test_a_cap_keeps_the_codes_of_a_cloud_even() -> None:
    points = cloud(9001, 5, 11) * torch.tensor([4.0, 2.0, 1.0, 1.0, 1.0])
    free = learn_level(points, 41, 0, np.random.default_rng(1))
    even = learn_level(points, 41, 1.1, np.random.default_rng(1))
    assert fullest(points, free, 41) > 1.3
    assert fullest(points, even, 41) <= 1.2
    assert not free.prices.any()
    assert even.prices.min() >= 0


def test_a_cap_does_not_tear_a_cluster_that_is_far_from_all_others() -> None:
    large, small = cloud(1009, 3, 13) * 0.1, cloud(53, 3, 14) * 0.1 + 9
    points = torch.cat([large, small])[torch.from_numpy(np.random.default_rng(2).permutation(1062))]
    level = learn_level(points, 2, 1.0, np.random.default_rng(1))
    assert sorted(np.bincount(codes_of(points.numpy(), level)).tolist()) == [53, 1009]


def test_prefixes_follow_a_known_hierarchy() -> None:
    vectors, nodes = tree_items(6007, 49, (31, 8, 4), (1.0, 0.6, 0.4), 0.2, seed=6)
    codebook = learn_codebook(vectors, (31, 64, 64), 2.0, seed=1)
    tokens = codebook.encode(vectors)[0]
    found = [
        mutual_information(prefix_numbers(tokens[:, : depth + 1]), nodes[:, depth])
        for depth in range(3)
    ]
    assert found[0] > 0.99
    assert min(found) > 0.9, found


@pytest.mark.parametrize("rows", [1, 2, 13])
def test_fewer_items_than_codes_have_a_code_each(rows: int) -> None:
    points = cloud(rows, 4, 19)
    codebook = learn_codebook(points.numpy(), (64, 64), 2.0, seed=1)
    assert len(codebook.levels[0].centres) == rows
    tokens, errors = codebook.encode(points.numpy())
    assert len(set(tokens[:, 0].tolist())) == rows
    assert errors[0] == 0


def test_equal_vectors_share_a_sid_however_many() -> None:
    points = torch.cat([cloud(1, 6, 21).expand(3001, 6), cloud(501, 6, 22)])
    codebook = learn_codebook(points.numpy(), (16, 16), 1.0, seed=1)
    tokens = codebook.encode(points.numpy())[0]
    assert len(np.unique(tokens[:3001], axis=0)) == 1
    assert len(np.unique(tokens[3001:], axis=0)) > 100
