"""Compare modes on your own snapshot, with the model and the requests that it serves.

The definition of generation searches it in each mode, and also without targeting, as mode `cd`
does. No ad is stopped, and a request's `exclude`, `at_most` and `max_ads` do not count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.bench.eligibility.audience import AT_ONCE
from grace.bench.eligibility.outcomes import Counting, Outcome, means
from grace.bench.eligibility.search import Found
from grace.bench.gpu.instruments.observed import observed
from grace.bench.load.shots import read_shots
from grace.bench.result_file import Row
from grace.configs.eligibility import EXACT, Eligibility, MatcherMode
from grace.configs.errors import InputError, RequestError
from grace.configs.generation import BeamProfile
from grace.configs.machine import available_cores
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.model.checkpoints.checkpoint import load_checkpoint, require_match
from grace.model.definition.beam_search import beam_search
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.feature_lookups import model_inputs_of
from grace.model.engine.feature_reader import FeatureReader


@dataclass(frozen=True, slots=True)
class OwnCatalogue:
    """
    snapshot  a folder, as `load_snapshot` takes it
    modes     to compare
    requests  a file of JSON lines
    """

    snapshot: Path
    modes: tuple[Eligibility, ...]
    checkpoint: Path
    requests: Path
    profile: BeamProfile


class _Batch(NamedTuple):
    users: UserRows
    context: UserContext


def measure(own: OwnCatalogue, device: torch.device) -> Iterator[Row]:
    """Yield a row of means for the catalogue without targeting, and one for each mode."""
    snapshot = load_snapshot(own.snapshot)
    model = load_checkpoint(own.checkpoint, device)
    require_match(model.spec, snapshot, own.checkpoint)
    counting = Counting(snapshot, device, load_ops(device))
    batches = list(_batches(own.requests, snapshot, model, device))

    def outcome(index: DecodeIndex) -> Outcome:
        outcomes = []
        for users, context in batches:
            asking = counting.asking(users)
            found = _found(model, context, asking, index, own.profile)
            outcomes.append(counting.outcome(found, users, asking))
        return Outcome.joined(outcomes)

    yield _row(MatcherMode.CD, snapshot, outcome(counting.index.without_matchers()))
    for eligibility in own.modes:
        index = counting.index
        if eligibility != EXACT:
            index = DecodeIndex.of(derive(snapshot, eligibility, available_cores()), device)
        yield _row(eligibility.mode, snapshot, outcome(index))


def _found(
    model: Model, context: UserContext, users: UserTensors, index: DecodeIndex, profile: BeamProfile
) -> Found:
    steps: list[Tensor] = []
    ops = observed(
        load_ops(context.states.device), lambda given, beams: steps.append(beams.nodes.clone())
    )
    found = beam_search(model.decoder, context, users, index, profile, ops)
    found.require_finite()
    return Found(tuple(steps), found.scores)


def _batches(
    requests: Path, snapshot: Snapshot, model: Model, device: torch.device
) -> Iterator[_Batch]:
    messages = [shot.body for shot in read_shots(requests, None)]
    encoder = UserEncoder(snapshot.schema, snapshot.set_values)
    reader = FeatureReader(model.spec)
    for begin in range(0, len(messages), AT_ONCE):
        some = messages[begin : begin + AT_ONCE]
        features, users = reader.read(some, len(some)), encoder.read(some, len(some))
        for faults in (features.faults, users.faults):
            _require_no_fault(faults, requests, begin)
        with torch.inference_mode():
            context = model.user_context(model_inputs_of(model.spec, features.inputs).to(device))
        yield _Batch(users.rows, context)


def _require_no_fault(faults: Sequence[RequestError | None], requests: Path, begin: int) -> None:
    for number, fault in enumerate(faults, begin + 1):
        if fault is not None:
            raise InputError(f"{requests}: request {number}: {fault}")


def _row(mode: MatcherMode, snapshot: Snapshot, outcome: Outcome) -> Row:
    everyone = np.ones(len(outcome.generated), np.bool_)
    return {
        "table": "own",
        "mode": mode.value,
        "sids_of_catalogue": snapshot.trie.num_leaves,
        "ads_of_catalogue": snapshot.ads.num_ads,
        **means(outcome, everyone),
    }
