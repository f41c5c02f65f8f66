"""The operations on a GPU: sizes that fill it, the paper's shapes, and several streams."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, load_ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.decode.select_beams import Choice
from grace.model.definition.inputs import Value, map_tensors
from support.decode_cases import assert_same_candidates, decode_case, every_sid_case
from support.exact_indexes import random_exact_index, random_exact_users
from support.op_case import normal, row_scales

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*determinis")]
GPU = torch.device("cuda")
WORDS, SETS = 5, 3
OTHERS = {"intervals": 2, "properties": 3}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Arguments = tuple[Any, ...]


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load_ops(GPU)


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def there(value: Value) -> Value:
    return map_tensors(value, lambda tensor: tensor.to(GPU))


def test_admission_and_selection_agree_with_a_thousand_beams_of_full_fan_out(ops: Ops) -> None:
    rng = np.random.default_rng(4)
    made = decode_case(every_sid_case(rng, (512, 3), 3))
    users, index = there((made.users, made.index))
    nodes = torch.zeros((3, 1024), dtype=torch.int32, device=GPU)  # the root, over and over
    candidates = ops.admit_children(nodes, users, index)
    assert_same_candidates(candidates, REFERENCE.admit_children(nodes, users, index))
    logits, scores = there((normal(rng, 1, 512).repeat(3072, 1), normal(rng, 3, 1024)))
    scores[1] = 0  # a request of ties by the thousand
    for k, ordered in ((1024, False), (1024, True), (5001, True), (1, True)):
        given = Choice(logits, scores, candidates, k, ordered)
        got, expected = ops.select_beams(given), REFERENCE.select_beams(given)
        torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)
        for name in ("parents", "tokens", "nodes"):
            assert torch.equal(getattr(got, name)[1], getattr(expected, name)[1]), name


def large_index(seed: int) -> DecodeIndex:
    """About a million leaves; rows of both kinds by the hundred thousand."""
    rng = np.random.default_rng(seed)
    fan_outs = (311.0, 63.0, 31.0, 2.7)
    size = {"rules": 111_111, "rows": 111_111, "long_leaves": 63}
    return there(random_exact_index(rng, fan_outs, WORDS, SETS, **size, **OTHERS))


def users_on_gpu(seed: int, requests: int) -> UserTensors:
    return there(random_exact_users(np.random.default_rng(seed), requests, WORDS, SETS, **OTHERS))


@pytest.mark.parametrize("requests", [1, 16, 33])
def test_a_million_leaves_equal_the_reference(ops: Ops, requests: int) -> None:
    index, users = large_index(2), users_on_gpu(3, requests)
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(ops.eligible_nodes(users, index), expected)


def test_batches_on_two_streams_do_not_mix(ops: Ops) -> None:
    """The host is done with all batches before the GPU begins."""
    index, own = large_index(4), [users_on_gpu(seed, 16) for seed in range(6)]
    expected = [REFERENCE.eligible_nodes(users, index) for users in own]
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    answers = []
    for number, users in enumerate(own):
        with torch.cuda.stream(streams[number % 2]):
            if number < 2:
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
            answers.append(ops.eligible_nodes(users, index))
    torch.cuda.synchronize()
    assert all(map(torch.equal, answers, expected))


def test_a_batch_on_any_stream_sees_the_last_write_of_pairs(ops: Ops) -> None:
    """The stream of the writing batch is busy, as the pipeline's or the explanations' may be."""
    index, users = large_index(13), users_on_gpu(14, 16)
    assert index.exact is not None
    pairs = np.arange(len(index.exact.leaf_rules))
    rules = np.resize(np.arange(index.exact.num_rules, dtype=np.int32), len(pairs))
    stopped = np.full_like(rules, index.exact.num_rules)
    busy = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for written in (stopped, rules):
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
            index.write_pairs(pairs, stopped)
        index.write_pairs(pairs, written)
        seen = ops.eligible_nodes(users, index)
        torch.cuda.synchronize()
        assert torch.equal(index.exact.leaf_rules.cpu(), torch.from_numpy(written))
        assert torch.equal(seen, REFERENCE.eligible_nodes(users, index))
        assert bool(seen[:, 0].any()) == (written is rules)


def prefixes(rng: np.random.Generator, dtype: torch.dtype, rows: int) -> Arguments:
    table = torch.from_numpy(rng.integers(4 * rows, size=(rows, 4), dtype=np.int32))
    generator = torch.Generator("cuda").manual_seed(1)
    pool = torch.randn(4 * rows, 3, 16, 128, device="cuda", generator=generator).to(dtype)
    bias, scales = normal(rng, 16, 4), row_scales(rng, 4 * rows)
    return (PagedPrefixes(pool, table, 3, bias, 0.1, scales),)


def queries(rng: np.random.Generator, dtype: torch.dtype, rows: int) -> Arguments:
    keys, values = (normal(rng, 16, 128, 16, 128).transpose(1, 2).to(dtype) for _ in "kv")
    mask = torch.from_numpy(rng.random((16, 128)) < 0.8)
    mask[3] = False
    asked = normal(rng, rows, 2048).to(dtype)
    return (BeamQueries(asked, keys, values, mask, 0.1, row_scales(rng, rows)),)


PAPER: Mapping[str, Callable[[np.random.Generator, torch.dtype, int], Arguments]] = {
    "self_attention": prefixes,
    "cross_attention": queries,
    "row_factors": lambda rng, dtype, rows: (normal(rng, rows, 2048).to(dtype), 1e-6),
    "activate": lambda rng, dtype, rows: (
        normal(rng, rows, 512).to(dtype),
        row_scales(rng, rows),
        "relu",
    ),
}
"""Inputs of some rows in the paper's decoder."""


@pytest.mark.parametrize("beams", [1, 37, 1024], ids=lambda beams: f"beams={beams}")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", PAPER)
def test_bodies_agree_at_the_papers_shape(
    ops: Ops, name: str, dtype: torch.dtype, beams: int
) -> None:
    arguments = there(PAPER[name](np.random.default_rng(beams), dtype, 16 * beams))
    got, expected = getattr(ops, name)(*arguments), getattr(REFERENCE, name)(*arguments)
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
