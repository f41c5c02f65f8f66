"""`grace evaluate`: measure a checkpoint on a log, next to simple baselines.

Without targeting, the model and the baselines list SIDs of the whole catalogue. With targeting,
people get only SIDs that lead to an ad that they may see. The report leaves out people whose true
SID has no such ad, and measures the others without targeting, too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from grace.configs.eligibility import EXACT
from grace.configs.generation import BeamProfile
from grace.configs.options import EvaluationSpec
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors, device_named, with_eligible
from grace.kernels.eligibility.masks import has_bit
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint, require_match
from grace.model.train.evaluate import Quality, Ranked, Search, ranked, rounded
from grace.model.train.interactions import HistoryBatches, history_input
from grace.model.train.log_reader import catalogue_of, read_log
from grace.model.train.loop import Progress, reproducible
from grace.model.train.recipe import profile_of

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Targeted:
    """The same people with and without targeting.

    columns         of the log, which say who they are
    eligible_share  the mean share of the catalogue's SIDs that lead to an ad for a person
    """

    columns: tuple[str, ...]
    people: int
    measured: int  # of them, who may see an ad of the true SID
    eligible_share: float
    with_targeting: dict[str, Quality]
    without_targeting: dict[str, Quality]


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The whole report. `targeted` is None if the log does not say who the users are."""

    checkpoint: str
    sid_space: str
    sids: int
    held_out_users: int
    measured_users: int
    unknown_events: int  # left out
    beams: BeamProfile
    device: str
    without_targeting: dict[str, Quality]
    targeted: Targeted | None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = rounded(asdict(self))
        return values


def report_on(spec: EvaluationSpec, progress: Progress) -> CheckpointReport:
    device = device_named(spec.device, "--device")
    cutoffs = sorted({*spec.cutoffs})
    model = load_checkpoint(spec.checkpoint, device)
    history = history_input(model.spec)
    folder = read_data_folder(spec.data)
    catalogue = catalogue_of(folder, spec, EXACT)
    require_match(model.spec, catalogue, spec.checkpoint)
    read = read_log(folder, catalogue, tuple(history.side), spec.max_unknown, attributes=True)
    log = read.interactions
    trie = catalogue.trie
    profile = profile_of(trie.vocab_sizes, trie.num_leaves, spec.beams)
    index = DecodeIndex.of(catalogue, device)
    search = Search(model, index.without_matchers(), profile)
    batches, events = HistoryBatches(log, history), log.last_events(spec.users)
    with reproducible(device=device):
        free = ranked(search, batches, events, progress)
        targeted = None
        if log.attributes:
            exact = replace(search, index=index)
            targeted = _targeted(exact, catalogue, batches, events, free, cutoffs, progress)
    return CheckpointReport(
        checkpoint=checkpoint_id(spec.checkpoint),
        sid_space=catalogue.facts.sid_space,
        sids=trie.num_leaves,
        held_out_users=len(log.last_events()),
        measured_users=len(events),
        unknown_events=read.left_out,
        beams=profile,
        device=device.type,
        without_targeting=free.qualities(cutoffs, profile.num_sids),
        targeted=targeted,
    )


def _targeted(
    search: Search,
    catalogue: Snapshot,
    batches: HistoryBatches,
    events: Int64,
    free: Ranked,
    cutoffs: Sequence[int],
    progress: Progress,
) -> Targeted:
    """The index of the search has the rules of targeting; `free` are ranks without it."""
    log = batches.log
    encoder = UserEncoder.of(catalogue)

    def asking(part: Int64) -> tuple[UserTensors, Bools]:
        attributes = tuple(map(log.attributes_at, part.tolist()))
        users = UserTensors.of(encoder.encode(attributes), search.device)
        users = with_eligible(users, search.index, search.ops)
        return users, _eligible_leaves(users, search.index, len(part))

    targeted = ranked(search, batches, events, progress, asking)
    seen = targeted.may_see
    most = search.profile.num_sids
    return Targeted(
        columns=tuple(log.attributes),
        people=len(events),
        measured=int(seen.sum()),
        eligible_share=float(targeted.share.mean()),
        with_targeting=targeted.of(seen).qualities(cutoffs, most) if seen.any() else {},
        without_targeting=free.of(seen).qualities(cutoffs, most) if seen.any() else {},
    )


def _eligible_leaves(users: UserTensors, index: DecodeIndex, count: int) -> Bools:
    """Return which SIDs lead to an ad that a user may see.   [users, leaves]"""
    assert users.eligible is not None  # the index has mode exact
    leaves = users.eligible[:, index.first_leaf :]
    rows = torch.stack([has_bit(leaves, user) for user in range(count)])
    eligible: Bools = rows.cpu().numpy()
    return eligible
