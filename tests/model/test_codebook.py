"""Codebooks: the codes of vectors against plain sums, balance, and known hierarchies."""

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.sids.vectors import mutual_information, prefix_numbers, tree_items
from grace.model.codebook.codebook import Codebook, learn_codebook
from grace.model.codebook.kmeans import learn_level, seed_centres
from grace.model.codebook.level import Level, codes_of


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
    first, second = level.centres[:-1], level.centres[1:]
    return (first + second) / 2


@pytest.mark.parametrize("dims", [1, 7, 63])
def test_codes_are_those_of_plain_sums(dims: int) -> None:
    level = Level(cloud(37, dims, 1) + 5, cloud(37, 1, 2)[:, 0].abs())
    points = cloud(211, dims, 3) + 5
    assert codes_of(points, level).tolist() == [plain_code(x, level) for x in points.tolist()]


def test_ties_go_to_the_lower_code() -> None:
    centres = torch.tensor([[2.0], [0.0], [2.0], [4.0]])
    level = Level(centres, torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert codes_of(torch.tensor([[2.0], [1.0], [4.0], [3.0]]), level).tolist() == [0, 0, 3, 0]


def test_a_vector_has_the_same_sid_alone_and_in_any_batch() -> None:
    points = cloud(1511, 33, 5)
    codebook = learn_codebook(points, (31, 17, 9), 1.5, seed=2)
    hard = torch.cat([points[:211], halfway(codebook.levels[0])])
    together = codebook.encode(hard).tokens
    alone = torch.cat([codebook.encode(row[None]).tokens for row in hard])
    backwards = codebook.encode(hard.flip(0)).tokens.flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)


def test_equal_seeds_give_equal_codebooks_on_any_number_of_threads() -> None:
    points, before = cloud(5003, 19, 7), torch.get_num_threads()
    try:
        learned = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            learned.append(learn_codebook(points, (29, 29), 2.0, seed=3))
    finally:
        torch.set_num_threads(before)
    other = learn_codebook(points, (29, 29), 2.0, seed=4)
    for one, two, three in zip(*(each.levels for each in (*learned, other)), strict=True):
        assert torch.equal(one.centres, two.centres)
        assert torch.equal(one.prices, two.prices)
        assert not torch.equal(one.centres, three.centres)


def fullest(points: Tensor, level: Level, codes: int) -> float:
    return float(torch.bincount(codes_of(points, level)).max()) * codes / len(points)


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
    assert sorted(torch.bincount(codes_of(points, level)).tolist()) == [53, 1009]


def test_clusters_as_many_as_codes_are_all_found() -> None:
    vectors, nodes = tree_items(9001, 16, (61,), (1.0,), 0.2, seed=4)
    level = learn_level(torch.from_numpy(vectors), 61, 2.0, np.random.default_rng(3))
    codes = codes_of(torch.from_numpy(vectors), level).numpy()
    assert mutual_information(codes, nodes[:, 0]) > 0.999


def test_prefixes_follow_a_known_hierarchy() -> None:
    vectors, nodes = tree_items(6007, 49, (31, 8, 4), (1.0, 0.6, 0.4), 0.2, seed=6)
    codebook = learn_codebook(torch.from_numpy(vectors), (31, 64, 64), 2.0, seed=1)
    tokens = codebook.encode(torch.from_numpy(vectors)).tokens.numpy()
    found = [
        mutual_information(prefix_numbers(tokens[:, : depth + 1]), nodes[:, depth])
        for depth in range(3)
    ]
    assert found[0] > 0.99
    assert min(found) > 0.9, found


def test_the_error_falls_with_every_level() -> None:
    points = cloud(3001, 12, 17)
    codebook = learn_codebook(points, (23,) * 4, 2.0, seed=1)
    errors = codebook.encode(points).errors
    residual = points.double()
    for level, error in zip(codebook.levels, errors, strict=True):
        residual = residual - level.centres[codes_of(residual.float(), level)].double()
        assert error == pytest.approx(float(residual.square().sum()), rel=1e-5)
    assert sorted(errors, reverse=True) == list(errors)
    assert errors[-1] < 0.5 * float(points.square().sum())


@pytest.mark.parametrize("rows", [1, 2, 13])
def test_fewer_items_than_codes_have_a_code_each(rows: int) -> None:
    points = cloud(rows, 4, 19)
    codebook = learn_codebook(points, (64, 64), 2.0, seed=1)
    assert len(codebook.levels[0].centres) == rows
    tokens = codebook.encode(points).tokens
    assert len(set(tokens[:, 0].tolist())) == rows
    assert codebook.encode(points).errors[0] == 0


def test_equal_vectors_share_a_sid_however_many() -> None:
    points = torch.cat([cloud(1, 6, 21).expand(3001, 6), cloud(501, 6, 22)])
    codebook = learn_codebook(points, (16, 16), 1.0, seed=1)
    tokens = codebook.encode(points).tokens
    assert len(torch.unique(tokens[:3001], dim=0)) == 1
    assert len(torch.unique(tokens[3001:], dim=0)) > 100


def test_all_vectors_equal_is_one_centre() -> None:
    codebook = learn_codebook(torch.ones(701, 3), (8, 8), 2.0, seed=1)
    assert [len(level.centres) for level in codebook.levels] == [1, 1]
    assert codebook.encode(torch.ones(2, 3)).tokens.tolist() == [[0, 0], [0, 0]]


def test_first_centres_are_distinct_points() -> None:
    points = cloud(97, 2, 23).repeat(3, 1)
    centres = seed_centres(points, 64, np.random.default_rng(1))
    assert len(torch.unique(centres, dim=0)) == 64
    assert {tuple(c) for c in centres.tolist()} <= {tuple(p) for p in points.tolist()}


@pytest.mark.gpu
def test_a_gpu_gives_the_sids_of_the_cpu() -> None:
    vectors, _ = tree_items(50_021, 96, (64, 16), (1.0, 0.5), 0.4, seed=8)
    points, gpu = torch.from_numpy(vectors), torch.device("cuda")
    codebook = learn_codebook(points[:20_011], (128, 128, 128), 1.5, seed=1)
    hard = torch.cat([points, halfway(codebook.levels[0])])
    tokens = codebook.to(gpu).encode(hard.to(gpu)).tokens.cpu()
    assert torch.equal(tokens, codebook.encode(hard).tokens)


@pytest.mark.gpu
def test_a_codebook_learned_on_a_gpu_is_as_good_and_the_same_every_time() -> None:
    vectors, _ = tree_items(50_021, 96, (64, 16), (1.0, 0.5), 0.4, seed=8)
    points, gpu = torch.from_numpy(vectors), torch.device("cuda")
    on_cpu = learn_codebook(points, (64, 64), 1.5, seed=1)
    one, two = (learn_codebook(points.to(gpu), (64, 64), 1.5, seed=1) for _ in range(2))
    for first, second in zip(one.levels, two.levels, strict=True):
        assert torch.equal(first.centres, second.centres)
        assert torch.equal(first.prices, second.prices)
    back = Codebook(tuple(level.to(torch.device("cpu")) for level in one.levels), one.codes)
    assert back.encode(points).errors == pytest.approx(on_cpu.encode(points).errors, rel=0.01)
