"""Mode `exact`: the time to find all nodes that lead to an eligible ad, for a batch of requests.

It is measured whole and, on a GPU, step by step, over several sizes of the catalogue and numbers of
set values per request. Batches of users take turns. The masks of every batch are compared with the
definition before they are timed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grace.bench.gpu.catalogue import SEED, Catalogue
from grace.bench.gpu.measure import free_memory, require_equal, sustained
from grace.bench.gpu.workload import BATCHES, Workload
from grace.bench.result_file import Row
from grace.catalogues.paper.catalogue import make_paper_catalogue
from grace.catalogues.paper.population import MAX_LOCATIONS
from grace.catalogues.paper.snapshots import decode_snapshot
from grace.configs.machine import available_cores
from grace.index.matchers.modes import MatcherMode
from grace.kernels import REFERENCE, DecodeIndex, QueryTensors, UserTensors
from grace.kernels.eligibility.attributes import AttributePredicate
from grace.kernels.eligibility.on_gpu import (
    eligible_nodes_on_gpu,
    node_masks_cuda,
    rows_on_gpu,
    rule_masks_cuda,
    write_leaves,
    write_level,
)
from grace.kernels.eligibility.tensors import ExactTensors

_SIZES = (30_000_000, 100_000_000)
_TINY_SIZES = (2_000, 3_000)
_ROUNDS = 2  # over the batches, in one recorded run


def node_masks(work: Workload, values: Sequence[int]) -> Iterator[Row]:
    for sids in work.options.sids or (_TINY_SIZES if work.options.tiny else _SIZES):
        catalogue, threads = Catalogue(sids), available_cores()
        paper = make_paper_catalogue(catalogue.spec, threads)
        snapshot = decode_snapshot(paper, threads, MatcherMode.EXACT)
        index = DecodeIndex.of(snapshot, work.device)
        own = catalogue.users(snapshot, work.device, BATCHES, work.batch)
        num_values = len(snapshot.set_values[0])
        del catalogue, paper, snapshot
        for count in values:
            users = own
            if count != MAX_LOCATIONS:
                rng = np.random.default_rng(SEED)
                users = [
                    _with_values(rng, each, min(count, num_values), num_values) for each in own
                ]
            for row in _rows(work, users, index):
                yield {"measure": "masks", "sids": sids, "values": count, **row}
        del index, own, users
        free_memory(work.device)


def _with_values(
    rng: np.random.Generator, users: UserTensors, count: int, num_values: int
) -> UserTensors:
    """Return the users with `count` random values of the only set each."""
    requests, device = len(users.bitmask), users.bitmask.device
    picked = [np.sort(rng.choice(num_values, size=count, replace=False)) for _ in range(requests)]
    offsets = torch.arange(requests + 1, dtype=torch.int32, device=device) * count
    values = torch.from_numpy(np.concatenate(picked).astype(np.int32)).to(device)
    queries = QueryTensors(offsets, torch.zeros_like(values, dtype=torch.int64), offsets, values)
    return replace(users, sets=(queries,))


def _rows(work: Workload, users: Sequence[UserTensors], index: DecodeIndex) -> Iterator[Row]:
    ops, exact = work.load_ops(work.device), index.exact
    assert exact is not None
    calls: dict[str, list[Callable[[], object]]] = {
        "all": [partial(ops.eligible_nodes, own, index) for own in users]
    }
    expected = [REFERENCE.eligible_nodes(own, index) for own in users]
    run = work.record_calls([partial(ops.eligible_nodes, own, index) for own in users])
    for number, (own, defined) in enumerate(zip(run(), expected, strict=True)):
        require_equal(f"eligible nodes, batch {number}", own, defined)
    del run, expected
    if ops.eligible_nodes is eligible_nodes_on_gpu:
        calls |= _steps(users, index, exact)
    sizes = {
        "nodes": exact.level_starts[-1],
        "rules": exact.num_rules,
        "pairs": len(exact.leaf_rules),
    }
    for step, own_calls in calls.items():
        timed = work.record_calls(own_calls * _ROUNDS)
        timing = sustained(timed, work.device, work.options.seconds, calls=len(own_calls) * _ROUNDS)
        del timed
        yield {"step": step, **sizes, **timing.row()}


def _steps(
    users: Sequence[UserTensors], index: DecodeIndex, exact: ExactTensors
) -> dict[str, list[Callable[[], object]]]:
    """Return the calls of each step, one per batch, on inputs that earlier steps made."""
    calls: dict[str, list[Callable[[], object]]] = {}
    starts = exact.level_starts
    for own in users:
        rows: list[tuple[Tensor, Tensor]] = []
        for place, predicate in enumerate(exact.predicates):
            name = "attributes" if isinstance(predicate, AttributePredicate) else f"set {place}"
            calls.setdefault(name, []).append(partial(rows_on_gpu, predicate, own))
            rows.append((rows_on_gpu(predicate, own), predicate.ids))
        given = (rows, len(own.bitmask), exact.num_rules, exact.leaf_rules.device)
        calls.setdefault("rules", []).append(partial(rule_masks_cuda, *given))
        rules = rule_masks_cuda(*given)
        eligible = node_masks_cuda(rules, exact, index.node_offsets)
        calls.setdefault("leaves", []).append(partial(write_leaves, eligible, rules, exact))
        for level in reversed(range(len(starts) - 2)):
            write = partial(write_level, eligible, level, starts, index.node_offsets)
            calls.setdefault(f"level {level}", []).append(write)
    return calls
