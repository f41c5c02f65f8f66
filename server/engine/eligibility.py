"""What mode `exact` costs: the memory of its lists and masks, and the time of a batch's masks."""

from dataclasses import dataclass
from time import perf_counter

import torch

from grace.index.snapshot import Snapshot, bytes_of
from grace.index.storage.arrays import counts_of
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, Ops, UserTensors, with_eligible
from grace.server.engine.memory import mask_bytes


@dataclass(frozen=True, slots=True)
class EligibilityFacts:
    """The cost of mode `exact`; all 0 in other modes.

    eligibility_list_bytes  of the lists that masks are made from
    eligibility_mask_bytes  of the most masks of batches that are in memory at once
    eligibility_ms          to make the masks of a full batch, whose users have no values of sets
    """

    eligibility_list_bytes: int = 0
    eligibility_mask_bytes: int = 0
    eligibility_ms: float = 0.0


def eligibility_facts(
    snapshot: Snapshot, index: DecodeIndex, users: UserEncoder, ops: Ops, max_batch: int
) -> EligibilityFacts:
    """Measure on the current stream. The first batch also pays for memory, so the second counts."""
    if snapshot.exact is None:
        return EligibilityFacts()
    device = index.node_offsets.device
    batch = UserTensors.of(users.read([], max_batch).rows, device)
    seconds = 0.0
    for _ in range(2):
        begin = perf_counter()
        with_eligible(batch, index, ops)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        seconds = perf_counter() - begin
    rules = snapshot.rules
    tables = tuple(rows for rows in rules.parts if not rows.has_values)
    lists = bytes_of((snapshot.exact, rules.rows, tables))
    return EligibilityFacts(lists, mask_bytes(counts_of(snapshot), max_batch), seconds * 1e3)
