"""Measure how well a model predicts held-out users' newest events, next to baselines.

A recommender ranks the true SID of each user, from 0. recall@k is the share of users whose rank is
below k; NDCG@k is the mean of 1 / log2(rank + 2) over the users, 0 for a rank of k or more. A true
SID that a recommender does not list has the rank ABSENT.

Without targeting, a recommender ranks SIDs of the whole catalogue. With targeting, it ranks only
those that lead to an ad that the user may see. The report of `grace evaluate` then leaves out
people whose true SID has no such ad, and measures the others without targeting, too.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from grace import kernels
from grace.configs.arrays import Bools, Float64, Int64
from grace.configs.eligibility import EXACT
from grace.configs.errors import ConfigError, DeviceError, NativeError
from grace.configs.generation import BeamProfile, profile_of
from grace.configs.options import EvaluationSpec
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.users.user_rows import UserEncoder
from grace.kernels.eligibility.eligible_nodes import eligible_at
from grace.model.checkpoints.checkpoint import checkpoint_id, load_encoder_decoder, require_match
from grace.model.definition.model import Model
from grace.model.engine.generation import PlainGeneration, SearchTask
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.log_reader import catalogue_of, read_log
from grace.model.train.loop import Progress, reproducible
from grace.model.train.recipe import RECIPE_FILE, read_recipe

CUTOFFS = (1, 5, 10, 50)
ABSENT = np.iinfo(np.int64).max
_MOST_ROWS, _MOST_CANDIDATES = 1 << 15, 1 << 28  # of a batch on a GPU: a few GB
_VALIDATED_AT = 10


@dataclass(frozen=True, slots=True)
class Quality:
    """A recommender's recall and NDCG by cut-off."""

    recall: dict[int, float]
    ndcg: dict[int, float]


def quality(ranks: Int64, cutoffs: Sequence[int] = CUTOFFS) -> Quality:
    gains = 1 / np.log2(ranks + 2.0)
    return Quality(
        recall={k: float((ranks < k).mean()) for k in cutoffs},
        ndcg={k: float(np.where(ranks < k, gains, 0).mean()) for k in cutoffs},
    )


@dataclass(frozen=True, slots=True)
class Popularity:
    """Recommends the SIDs most frequent in training, ties in SID order."""

    leaves: Int64  # [leaves] the most popular first
    place: Int64  # [leaves] the place of each leaf in `leaves`

    @classmethod
    def of(cls, log: Interactions, num_leaves: int) -> "Popularity":
        leaves = np.argsort(-log.leaf_counts(num_leaves), kind="stable")
        place = np.empty_like(leaves)
        place[leaves] = np.arange(num_leaves)
        return cls(leaves, place)

    def ranks(self, truth: Int64, eligible: Bools | None = None) -> Int64:
        """Rank each true SID, among all or the `eligible`, [users, leaves].   [users]"""
        if eligible is None:
            return self.place[truth]
        return np.array(
            [
                np.count_nonzero(own[self.leaves[: self.place[leaf]]])
                for own, leaf in zip(eligible, truth, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class Followers:
    """Recommends the SIDs that came most often right after the user's last one in training."""

    before: Int64  # [pairs] ascending
    after: Int64  # [pairs] the most frequent first

    @classmethod
    def of(cls, log: Interactions) -> "Followers":
        pairs, counts = np.unique(log.transitions(), axis=0, return_counts=True)
        order = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
        before, after = pairs[order].T
        return cls(before, after)

    def ranks(self, last: Int64, truth: Int64, eligible: Bools | None = None) -> Int64:
        """Rank each user's true SID after the last one, as `Popularity` does.   [users]"""
        begin = np.searchsorted(self.before, last)
        end = np.searchsorted(self.before, last, side="right")
        ranks = np.full(len(truth), ABSENT)
        for user, (low, high) in enumerate(zip(begin, end, strict=True)):
            listed = self.after[low:high]
            if eligible is not None:
                listed = listed[eligible[user, listed]]
            found = np.flatnonzero(listed == truth[user])
            if len(found):
                ranks[user] = found[0]
        return ranks


@dataclass(frozen=True, slots=True)
class Search:
    """A model in the product's own beam search, on the device of both."""

    model: Model
    index: kernels.DecodeIndex
    profile: BeamProfile

    @property
    def device(self) -> torch.device:
        return self.index.csr_tokens.device

    @property
    def users_at_once(self) -> int:
        """Return a number of users whose search fits a CPU's cache, or keeps a GPU busy."""
        if self.device.type == "cpu":
            return 64
        beams, widest = max(self.profile.beams), max(self.model.spec.vocab_sizes)
        return max(1, min(256, _MOST_ROWS // beams, _MOST_CANDIDATES // (beams * widest)))

    @property
    def ops(self) -> kernels.Ops:
        return _ops_on(self.device)

    def leaves(
        self, batches: HistoryBatches, events: Int64, users: kernels.UserTensors | None = None
    ) -> Int64:
        """Return what follows the history before each event, best first.   [B, num_sids]

        Without users, the index has no matchers.
        """
        inputs = batches.inputs(events)
        with torch.inference_mode():
            features = self.model.features(inputs)
        if users is None:
            nobody = self.index.csr_tokens.new_zeros((len(events), 0), dtype=torch.int64)
            users = kernels.UserTensors.asking(nobody)
        engine = PlainGeneration(self.model, self.ops)
        found = engine.generate(features, SearchTask(users, self.index, self.profile))
        try:
            found.require_finite()
        except ValueError as error:
            remedy = "train it again with a lower training.learning_rate"
            raise ConfigError(f"{error}: {remedy}") from None
        leaves: Int64 = found.leaves.cpu().numpy()
        return leaves


@cache
def _ops_on(device: torch.device) -> kernels.Ops:
    """Return float32 operations: fast ones, or plain ones if the fast ones do not load."""
    try:
        fast = kernels.load_ops(device)
    except (DeviceError, NativeError) as error:
        logging.getLogger(__name__).warning("%s; without it, the evaluation is slow", error)
        return kernels.REFERENCE
    return replace(
        kernels.REFERENCE,
        eligible_nodes=fast.eligible_nodes,
        admit_children=fast.admit_children,
        select_beams=fast.select_beams,
    )


class Ranked(NamedTuple):
    """The ranks of each user's true SID by recommender."""

    model: Int64
    followers: Int64
    popularity: Int64
    may_see: Bools  # whether the true SID has an ad that the user may see
    share: Float64  # the share of the SIDs that have one

    def of(self, users: Bools) -> "Ranked":
        return Ranked._make(each[users] for each in self)

    def qualities(self, cutoffs: Sequence[int], most: int) -> dict[str, Quality]:
        """Return the quality of each recommender; the model lists `most` SIDs, so it has no numbers
        for cut-offs above that."""
        return {
            "model": quality(self.model, [k for k in cutoffs if k <= most]),
            "followers": quality(self.followers, cutoffs),
            "popularity": quality(self.popularity, cutoffs),
        }


def rank_of(truth: Int64, listed: Int64) -> Int64:
    """Return the place of each true SID in its row, or ABSENT.   [users], [users, n] -> [users]"""
    ranks = np.full(len(truth), ABSENT)
    user, rank = np.nonzero(listed == truth[:, np.newaxis])
    ranks[user] = rank
    return ranks


def validation_score(search: Search, batches: HistoryBatches, events: Int64) -> float:
    """Return NDCG@10 of the model at these events."""
    at_once = search.users_at_once
    parts = np.split(events, range(at_once, len(events), at_once))
    ranks = [rank_of(batches.log.leaves[part], search.leaves(batches, part)) for part in parts]
    return quality(np.concatenate(ranks), [_VALIDATED_AT]).ndcg[_VALIDATED_AT]


Asking: TypeAlias = Callable[[Int64], tuple[kernels.UserTensors, Bools]]
"""Returns the users of some events, and which SIDs have an ad for each user.  [users, leaves]"""


def ranked(
    search: Search,
    batches: HistoryBatches,
    events: Int64,
    progress: Progress,
    asking: Asking | None = None,
) -> Ranked:
    """Return the ranks of the model and of two baselines; with targeting if `asking` is given."""
    log, parts, sids = batches.log, [], len(batches.log.leaf_sids)
    followers, popularity = Followers.of(log), Popularity.of(log, sids)
    for start in range(0, len(events), search.users_at_once):
        part = events[start : start + search.users_at_once]
        last, truth = log.leaves[part - 1], log.leaves[part]
        users, eligible = asking(part) if asking else (None, None)
        each, all_of_them = np.arange(len(part)), np.ones(len(part))
        parts.append(
            Ranked(
                model=rank_of(truth, search.leaves(batches, part, users)),
                followers=followers.ranks(last, truth, eligible),
                popularity=popularity.ranks(truth, eligible),
                may_see=all_of_them > 0 if eligible is None else eligible[each, truth],
                share=all_of_them if eligible is None else eligible.mean(axis=1),
            )
        )
        progress("evaluate", start + len(part), len(events), "")
    return Ranked._make(map(np.concatenate, zip(*parts, strict=True)))


def rounded(value: Any) -> Any:
    """Return the value for JSON: numbers with four decimals, and names as texts."""
    if isinstance(value, dict):
        return {str(name): rounded(inner) for name, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Targeted:
    """The same people with and without targeting."""

    columns: tuple[str, ...]  # of the log, which say who they are
    missing: tuple[str, ...]  # the schema's other names: no user has a value for them
    people: int
    measured: int  # of them, who may see an ad of the true SID
    eligible_share: float  # the mean share of the catalogue's SIDs that lead to an ad for a person
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
    device = kernels.device_named(spec.device, "--device")
    cutoffs = sorted({*spec.cutoffs})
    model = load_encoder_decoder(spec.checkpoint, device)
    history = history_input(model.spec)
    folder = read_data_folder(spec.data)
    catalogue = catalogue_of(folder, spec, EXACT)
    require_match(model.spec, catalogue, spec.checkpoint)
    # The baselines learn from the events that this model learned from.
    recipe = spec.checkpoint / RECIPE_FILE
    trained = read_recipe(recipe if recipe.is_file() else None).sections["training"]
    read = read_log(
        folder,
        catalogue,
        tuple(history.side),
        spec.max_unknown,
        attributes=True,
        validation=bool(trained.get("validate_every")),
    )
    log = read.interactions
    trie = catalogue.trie
    profile = profile_of(trie.vocab_sizes, min(spec.beams, trie.num_leaves))
    index = kernels.DecodeIndex.of(catalogue, device)
    search = Search(model, index.without_matchers(), profile)
    batches, events = HistoryBatches(log, history, device), log.last_events(spec.users)
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

    def asking(part: Int64) -> tuple[kernels.UserTensors, Bools]:
        attributes = tuple(map(log.attributes_at, part.tolist()))
        asked = encoder.encode(attributes, log.times_ms[part].tolist())
        users = kernels.UserTensors.of(asked, search.device)
        users = kernels.with_eligible(users, search.index, search.ops)
        assert users.eligible is not None  # the index has mode exact
        nodes = [eligible_at(users.eligible, user, search.index) for user in range(len(part))]
        return users, torch.stack(nodes)[:, search.index.first_leaf :].cpu().numpy()

    targeted = ranked(search, batches, events, progress, asking)
    seen, schema = targeted.may_see, catalogue.schema
    names = {*schema.user_names} - log.attributes.keys()
    most = search.profile.num_sids
    return Targeted(
        columns=tuple(log.attributes),
        missing=tuple(sorted(names - {each.name for each in schema.attributes if each.clock})),
        people=len(events),
        measured=int(seen.sum()),
        eligible_share=float(targeted.share.mean()),
        with_targeting=targeted.of(seen).qualities(cutoffs, most) if seen.any() else {},
        without_targeting=free.of(seen).qualities(cutoffs, most) if seen.any() else {},
    )
