"""Codebooks: the codes of vectors against plain sums, balance, and known hierarchies."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from grace.bench.sids.vectors import mutual_information, prefix_numbers, tree_items
from grace.index.codebook.codebook import Level
from grace.index.codebook.codebook import codes_of as codes_on_cpu
from grace.model.codebook.kmeans import learn_codebook, learn_level
from grace.model.codebook.level import LevelTensors, codes_of, codes_on_gpu, on_cpu

Coder = Callable[[Tensor, LevelTensors], list[int]]
CODERS: dict[str, Coder] = {
    "NumPy": lambda points, level: codes_on_cpu(points.numpy(), on_cpu(level)).tolist(),
    "torch": lambda points, level: codes_on_gpu(points, level).tolist(),
}
both = pytest.mark.parametrize("coder", CODERS.values(), ids=CODERS)


def cloud(rows: int, dims: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, dims), np.float32))


def plain_code(vector: list[float], level: LevelTensors) -> int:
    costs = [
        sum((a - b) ** 2 for a, b in zip(vector, centre, strict=True)) + price
        for centre, price in zip(level.centres.tolist(), level.prices.tolist(), strict=True)
    ]
    return costs.index(min(costs))


def halfway(level: Level) -> Tensor:
    """Return points that are equally far from two centres, but for rounding."""
    return torch.from_numpy((level.centres[:-1] + level.centres[1:]) / 2)


@both
@pytest.mark.parametrize("dims", [1, 7, 63])
def test_codes_are_those_of_plain_sums(dims: int, coder: Coder) -> None:
    level = LevelTensors(cloud(37, dims, 1) + 5, cloud(37, 1, 2)[:, 0].abs())
    points = torch.cat([cloud(211, dims, 3) + 5, halfway(on_cpu(level))])
    assert coder(points, level) == [plain_code(x, level) for x in points.tolist()]


@both
def test_ties_go_to_the_lower_code(coder: Coder) -> None:
    centres = torch.tensor([[2.0], [0.0], [2.0], [4.0]])
    level = LevelTensors(centres, torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert coder(torch.tensor([[2.0], [1.0], [4.0], [3.0]]), level) == [0, 0, 3, 0]


def test_numpy_and_torch_give_the_same_codes_also_where_rounding_decides() -> None:
    """Permuted centres are equally far from a constant vector, but for the order of the sums."""
    rng = np.random.default_rng(9)
    for dims in (2, 19, 96):
        one = rng.standard_normal(dims).astype(np.float32)
        centres = np.stack([rng.permutation(one) for _ in range(67)])
        nudged = centres + rng.standard_normal(centres.shape).astype(np.float32) * 1e-7
        level = LevelTensors(torch.from_numpy(np.concatenate([centres, nudged])), torch.zeros(134))
        constant = np.repeat(rng.standard_normal(301).astype(np.float32), dims).reshape(-1, dims)
        points = torch.cat([torch.from_numpy(constant), halfway(on_cpu(level)), level.centres])
        assert CODERS["NumPy"](points, level) == CODERS["torch"](points, level)


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
    points, before = cloud(5003, 19, 7), torch.get_num_threads()
    try:
        learned = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            learned.append(learn_codebook(points.numpy(), (29, 29), 2.0, seed=3))
    finally:
        torch.set_num_threads(before)
    other = learn_codebook(points.numpy(), (29, 29), 2.0, seed=4)
    for one, two, three in zip(*(each.levels for each in (*learned, other)), strict=True):
        assert np.array_equal(one.centres, two.centres)
        assert np.array_equal(one.prices, two.prices)
        assert not np.array_equal(one.centres, three.centres)


def fullest(points: Tensor, level: LevelTensors, codes: int) -> float:
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


def test_the_error_falls_with_every_level() -> None:
    points = cloud(3001, 12, 17)
    codebook = learn_codebook(points.numpy(), (23,) * 4, 2.0, seed=1)
    tokens, errors = codebook.encode(points.numpy())
    residual: npt.NDArray[np.float64] = points.double().numpy()
    for at, (level, error) in enumerate(zip(codebook.levels, errors, strict=True)):
        residual = residual - level.centres[tokens[:, at]]
        assert error == pytest.approx(float(np.square(residual).sum()), rel=1e-5)
    assert sorted(errors, reverse=True) == list(errors)
    assert errors[-1] < 0.5 * float(points.square().sum())


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


@pytest.mark.gpu
def test_a_gpu_gives_the_codes_of_the_cpu() -> None:
    vectors, _ = tree_items(50_021, 96, (64, 16), (1.0, 0.5), 0.4, seed=8)
    level = learn_level(torch.from_numpy(vectors[:20_011]), 128, 1.5, np.random.default_rng(1))
    hard, gpu = torch.cat([torch.from_numpy(vectors), halfway(on_cpu(level))]), "cuda"
    on_gpu = LevelTensors(level.centres.to(gpu), level.prices.to(gpu))
    assert torch.equal(codes_of(hard.to(gpu), on_gpu).cpu(), codes_of(hard, level))


@pytest.mark.gpu
def test_a_codebook_learned_on_a_gpu_is_as_good_and_the_same_every_time() -> None:
    vectors, _ = tree_items(50_021, 96, (64, 16), (1.0, 0.5), 0.4, seed=8)
    points = torch.from_numpy(vectors)
    by_cpu = learn_codebook(points.numpy(), (64, 64), 1.5, seed=1)
    one, two = (
        learn_codebook(vectors, (64, 64), 1.5, 1, device=torch.device("cuda")) for _ in range(2)
    )
    for first, second in zip(one.levels, two.levels, strict=True):
        assert np.array_equal(first.centres, second.centres)
        assert np.array_equal(first.prices, second.prices)
    assert one.encode(vectors)[1] == pytest.approx(by_cpu.encode(vectors)[1], rel=0.01)
