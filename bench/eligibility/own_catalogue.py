"""Compare modes on your own snapshots, with the model and the requests that they serve.

All snapshots must be built from the same ads. The definition of generation searches each of them,
and also the catalogue without targeting, as mode `cd` does. No ad is stopped, and a request's
`exclude`, `at_most` and `max_ads` do not count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.bench.eligibility.audience import AT_ONCE
from grace.bench.eligibility.outcomes import Outcome, means, outcome_of
from grace.bench.eligibility.search import Found
from grace.bench.gpu.instruments.observed import observed
from grace.bench.load.shots import read_shots
from grace.bench.result_file import Row
from grace.configs.errors import InputError, RequestError
from grace.configs.generation import BeamProfile
from grace.configs.machine import available_cores
from grace.index.matchers.exact_lists import exact_lists
from grace.index.matchers.modes import MatcherMode
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import DecodeIndex, UserTensors, load_ops, with_eligible
from grace.model.checkpoints.checkpoint import load_checkpoint, require_match
from grace.model.definition.beam_search import beam_search
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.feature_lookups import model_inputs_of
from grace.model.engine.feature_reader import FeatureReader

_SAME = ("schema", "trie", "ads", "rules", "set_values")
"""The parts of a snapshot that follow from the ads and the schema, whatever its mode."""


@dataclass(frozen=True, slots=True)
class OwnCatalogue:
    """
    snapshots   folders of the same ads in different modes, as `load_snapshot` takes them
    requests    a file of JSON lines
    """

    snapshots: tuple[Path, ...]
    checkpoint: Path
    requests: Path
    profile: BeamProfile


class _Batch(NamedTuple):
    users: UserRows
    context: UserContext


def measure(own: OwnCatalogue, device: torch.device) -> Iterator[Row]:
    """Yield a row of means for the catalogue without targeting, and one for each snapshot."""
    first = load_snapshot(own.snapshots[0])
    model = load_checkpoint(own.checkpoint, device)
    require_match(model.spec, first, own.checkpoint)
    search = _Search(first, model, own.profile, device)
    batches = list(_batches(own.requests, first, model, device))
    catalogue = search.exact.without_matchers()
    yield _row(own.snapshots[0], MatcherMode.CD, first, search.outcome(catalogue, batches))
    for path in own.snapshots:
        snapshot = first if path == own.snapshots[0] else load_snapshot(path)
        _require_same(first, snapshot, path)
        index = DecodeIndex.of(snapshot, device)
        yield _row(path, snapshot.mode, snapshot, search.outcome(index, batches))


class _Search:
    """Searches of one catalogue. `exact` says which beams are useful, in every mode."""

    def __init__(
        self, snapshot: Snapshot, model: Model, profile: BeamProfile, device: torch.device
    ) -> None:
        threads = available_cores()
        self._first_leaf, self._num_ads = snapshot.trie.first_leaf, snapshot.ads.num_ads
        self._decoder, self._profile = model.decoder, profile
        self._device, self._ops = device, load_ops(device)
        self._matcher = ExactMatcher(snapshot, threads)
        self.exact = DecodeIndex.of(_in_mode_exact(snapshot, threads), device)

    def outcome(self, index: DecodeIndex, batches: Sequence[_Batch]) -> Outcome:
        outcomes = []
        for users, context in batches:
            asking = with_eligible(UserTensors.of(users, self._device), self.exact, self._ops)
            assert asking.eligible is not None
            found = self._found(context, asking, index)
            outcomes.append(
                outcome_of(
                    *(found, users, self._matcher, asking.eligible, None),
                    *(self._first_leaf, self._num_ads),
                )
            )
        return Outcome.joined(outcomes)

    def _found(self, context: UserContext, users: UserTensors, index: DecodeIndex) -> Found:
        steps: list[Tensor] = []
        ops = observed(self._ops, lambda given, beams: steps.append(beams.nodes.clone()))
        found = beam_search(self._decoder, context, users, index, self._profile, ops)
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


def _in_mode_exact(snapshot: Snapshot, threads: int) -> Snapshot:
    if snapshot.exact is not None:
        return snapshot
    num_values = tuple(map(len, snapshot.set_values))
    lists = exact_lists(snapshot.ads, snapshot.rules, num_values, threads)
    return replace(snapshot, mode=MatcherMode.EXACT, matchers=None, exact=lists)


def _require_same(first: Snapshot, other: Snapshot, path: Path) -> None:
    for part in _SAME:
        if not _equal(getattr(first, part), getattr(other, part)):
            raise InputError(
                f"--snapshots {path}: its {part.replace('_', ' ')} differ from the first "
                "snapshot's: build both from the same ads and the same targeting schema"
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if is_dataclass(one):
        names = [field.name for field in fields(one)]
        return all(_equal(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def _row(path: Path, mode: MatcherMode, snapshot: Snapshot, outcome: Outcome) -> Row:
    everyone = np.ones(len(outcome.generated), np.bool_)
    return {
        "table": "own",
        "snapshot": str(path),
        "mode": mode.value,
        "sids_of_catalogue": snapshot.trie.num_leaves,
        "ads_of_catalogue": snapshot.ads.num_ads,
        **means(outcome, everyone),
    }
