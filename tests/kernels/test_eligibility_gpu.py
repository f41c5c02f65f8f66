"""Exact eligibility on a GPU: sizes that fill it, replayed steps, and batches that overlap."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import (
    REFERENCE,
    DecodeIndex,
    Ops,
    UserTensors,
    load_ops,
    with_eligible,
)
from grace.kernels.decode.admit_children_cuda import CudaSlot
from grace.kernels.eligibility.attributes import attribute_rows_reference
from grace.kernels.eligibility.sets import set_rows_reference
from support.decode_cases import assert_same_candidates
from support.exact_indexes import (
    attribute_rows_by_nodes,
    random_exact_index,
    random_exact_users,
    random_postings,
    random_queries,
    random_table,
    random_user_bits,
    set_rows_by_nodes,
)
from support.op_cases import mapped

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*determinis")]
GPU = torch.device("cuda")
WORDS, SETS = 5, 2


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load_ops(GPU)


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def there(tensor: Tensor) -> Tensor:
    return tensor.to(GPU)


def large_index(seed: int, rules: int = 111_111) -> DecodeIndex:
    """About a million leaves."""
    rng = np.random.default_rng(seed)
    index = random_exact_index(rng, (311.0, 63.0, 31.0, 2.7), WORDS, SETS, rules, long_leaves=63)
    on_gpu: DecodeIndex = mapped(index, there)
    return on_gpu


def users_on_gpu(seed: int, requests: int) -> UserTensors:
    users: UserTensors = mapped(
        random_exact_users(np.random.default_rng(seed), requests, WORDS, SETS), there
    )
    return users


def test_rows_by_the_hundred_thousand_equal_the_reference(ops: Ops) -> None:
    rng = np.random.default_rng(1)
    table, users = mapped((random_table(rng, 333_333, 7), random_user_bits(rng, 33, 7)), there)
    expected = attribute_rows_reference(table, users)
    assert torch.equal(attribute_rows_by_nodes(ops, table, users), expected)
    by_word = table.t().contiguous().t()
    assert torch.equal(attribute_rows_by_nodes(ops, by_word, users), expected)
    postings = mapped(random_postings(rng, 111_111, 101, False), there)
    queries = mapped(random_queries(rng, 33, 101), there)
    made = set_rows_by_nodes(ops, postings, queries)
    assert torch.equal(made, set_rows_reference(postings, queries))


@pytest.mark.parametrize("requests", [1, 16, 33])
def test_a_million_leaves_equal_the_reference(ops: Ops, requests: int) -> None:
    index, users = large_index(2), users_on_gpu(3, requests)
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(ops.eligible_nodes(users, index), expected)


def test_batches_on_two_streams_do_not_mix(ops: Ops) -> None:
    """The host is done with all batches before the GPU begins."""
    index, batches = large_index(4), [users_on_gpu(seed, 16) for seed in range(6)]
    expected = [REFERENCE.eligible_nodes(users, index) for users in batches]
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    answers = []
    for number, users in enumerate(batches):
        with torch.cuda.stream(streams[number % 2]):
            if number < 2:
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
            answers.append(ops.eligible_nodes(users, index))
    torch.cuda.synchronize()
    for answer, own in zip(answers, expected, strict=True):
        assert torch.equal(answer, own)


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
        assert bool(seen.any()) == (written is rules)


@pytest.mark.parametrize("lanes", [8, 16, 32, 128])
def test_a_captured_admission_reads_the_masks_that_the_slot_points_at(ops: Ops, lanes: int) -> None:
    """One graph serves batches of another snapshot, and of one whose ads are stopped."""
    index, other = large_index(5), large_index(8, rules=1111)
    widest = (max(*index.vocab_sizes, *other.vocab_sizes),)
    index, other = (replace(own, vocab_sizes=widest) for own in (index, other))
    first = with_eligible(users_on_gpu(6, 16), index, ops)
    rng, slot = np.random.default_rng(7), CudaSlot()
    drawn = rng.integers(-1, index.first_leaf, size=(16, 111), dtype=np.int32)
    nodes = torch.from_numpy(drawn).to(GPU)
    slot.point_at(first, index)
    slot.admit_children(nodes, lanes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        candidates = slot.admit_children(nodes, lanes)
    admitted = []
    for seed, own in ((9, index), (10, other), (11, index)):
        if seed == 11:
            assert own.exact is not None
            own.exact.leaf_rules[: len(own.exact.leaf_rules) // 2] = own.exact.num_rules
        users = with_eligible(users_on_gpu(seed, 16), own, ops)
        slot.point_at(users, own)
        nodes.copy_(torch.from_numpy(drawn % own.first_leaf).int())
        graph.replay()
        expected = REFERENCE.admit_children(nodes, users, own)
        assert_same_candidates(candidates, expected)
        admitted.append(len(expected.tokens))
    assert min(admitted) > 0
