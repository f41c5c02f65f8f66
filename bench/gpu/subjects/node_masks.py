"""Mode `exact`: the time to make the masks from which a batch's eligible nodes follow, and memory.

It is measured whole and, on a GPU, step by step, over several sizes of the catalogue and numbers of
set values per request, and with all forms of components. Batches of users take turns. The masks of
every batch are compared with the definition before they are timed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grace.bench.gpu.instruments.measure import free_memory, require_equal
from grace.bench.gpu.subjects.all_forms import with_all_forms
from grace.bench.gpu.subjects.catalogue import SEED, Catalogue
from grace.bench.gpu.subjects.workload import BATCHES, Workload
from grace.bench.result_file import Row
from grace.catalogues.paper.population import MAX_LOCATIONS
from grace.configs.eligibility import MatcherMode
from grace.index.forms.component import OPEN_EXCLUDE
from grace.index.forms.lists import AskedLists
from grace.kernels import REFERENCE, DecodeIndex, UserTensors
from grace.kernels.eligibility.batch import STEPS, EligibleNodesCall, eligible_nodes_on_gpu

_SIZES = (30_000_000, 100_000_000)
_TINY_SIZES = (2_000, 3_000)
_ROUNDS = 2  # over the batches, in one recorded run
ALL_FORMS = "forms"


def node_masks(work: Workload, kinds: Sequence[str]) -> Iterator[Row]:
    """`kinds` are numbers of set values, or ALL_FORMS."""
    for sids in work.options.sids or (_TINY_SIZES if work.options.tiny else _SIZES):
        catalogue = Catalogue(sids, work.options.commit_cache)
        snapshot = catalogue.snapshot(MatcherMode.EXACT)
        index = DecodeIndex.of(snapshot, work.device)
        own = catalogue.users(snapshot, work.device, BATCHES, work.batch)
        num_values = len(snapshot.set_values[0])
        del catalogue, snapshot
        for kind in kinds:
            measure, tested, users, count = "masks", index, own, MAX_LOCATIONS
            if kind == ALL_FORMS:
                measure = "masks_of_all_forms"
                tested, users = with_all_forms(index, own)
            elif int(kind) != MAX_LOCATIONS:
                count, rng = int(kind), np.random.default_rng(SEED)
                users = [
                    _with_values(rng, each, min(count, num_values), num_values) for each in own
                ]
            for row in _rows(work, users, tested):
                yield {"measure": measure, "sids": sids, "values": count, **row}
            del tested
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
    opens = torch.full((requests,), OPEN_EXCLUDE, dtype=torch.uint8, device=device)
    queries = AskedLists(opens, offsets, values, torch.zeros_like(values, dtype=torch.int64))
    return UserTensors.asking(users.bitmask, queries)


def _rows(work: Workload, users: Sequence[UserTensors], index: DecodeIndex) -> Iterator[Row]:
    ops, exact = work.load_ops(work.device), index.exact
    assert exact is not None
    calls: dict[str, list[Callable[[], object]]] = {
        "all": [partial(ops.eligible_nodes, own, index) for own in users]
    }
    scratch = 0
    if ops.eligible_nodes is eligible_nodes_on_gpu:
        scratch = EligibleNodesCall(index.eligibility_plan, users[0]).layout.scratch_bytes
        calls |= _steps(users, index, len(exact.level_starts) - 2)
    expected = [REFERENCE.eligible_nodes(own, index) for own in users]

    def check(place: int, got: object) -> None:
        assert isinstance(got, Tensor)
        number = place % len(users)
        require_equal(f"eligible nodes, batch {number}", got, expected[number])

    sizes = {
        "nodes": exact.level_starts[-1],
        "rules": exact.num_rules,
        "pairs": len(exact.leaf_rules),
        "mask_mb": round(expected[0].nbytes / 1e6, 1),
        "scratch_mb": round(scratch / 1e6, 1),
        "list_mb": round((exact.leaf_offsets.nbytes + exact.leaf_rules.nbytes) / 1e6, 1),
    }
    for step, own_calls in calls.items():
        timing = work.timed_calls(own_calls * _ROUNDS, check if step == "all" else None)
        yield {"step": step, **sizes, **timing.row()}


def _steps(
    users: Sequence[UserTensors], index: DecodeIndex, levels: int
) -> dict[str, list[Callable[[], object]]]:
    """Return the calls of each step, one per batch, on what the steps before it have made."""
    made = [EligibleNodesCall(index.eligibility_plan, own) for own in users]
    for call in made:
        call.launch()
    steps = dict(enumerate(STEPS))
    steps |= {len(STEPS) + level: f"level {level}" for level in reversed(range(levels))}
    return {name: [partial(call.launch, step) for call in made] for step, name in steps.items()}
