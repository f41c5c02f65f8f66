"""Compute what `grace demo` shows: one SID, token by token.

The model scores every SID of the catalogue. So each token that the server admits or prunes can be
shown with an ad that it leads to.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from grace import model
from grace.catalogues.synth.spec import DAY_MS, HOUR_MS, NOW_MS
from grace.client.request_json import request_of_json
from grace.index.ads_table import AdsTable, KnownAd
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.kernels.eligibility.eligible_nodes import eligible_at
from grace.model.checkpoints.checkpoint import load_encoder_decoder, require_match
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.feature_reader import read_inputs

CHECKPOINT = Path(model.__file__).parent / "demo"
CPU = torch.device("cpu")
USER = {
    "country": ["US"],
    "age": ["25-34"],
    "gender": ["female"],
    "device": ["phone"],
    "language": ["en"],
    "location": ["us", "us/mn", "us/mn/minneapolis"],
}
TUESDAY_10 = NOW_MS + 3 * HOUR_MS  # in Minneapolis
UTC_OFFSET_MINUTES = -300
VARIANTS: dict[str, dict[str, Any]] = {
    "Tuesday, 10:00": {},
    "Tuesday, 20:00": {"at": TUESDAY_10 + 10 * HOUR_MS},
    "Wednesday, 2:00": {"at": TUESDAY_10 + 16 * HOUR_MS},
    "Four weeks later": {"at": TUESDAY_10 + 28 * DAY_MS},
    "No dentists": {"filters": {"category": {"none_of": ["dentists"]}}},
}
"""The changes to the request, by the name of the variant."""

CLICKED = ("physiotherapy clinic", "eye test", "orthodontist", "dental clinic")
"""Products that the demonstration's user clicked, oldest first."""

ROWS = 256
"""SIDs that the model scores at once."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A token that continues a prefix in the catalogue, and where it leads.

    `ad` is one of the most probable SID below. If the server admits the branch, the user may see
    that ad; if it prunes the branch, some of the ad's rules do not allow the user.
    """

    token: int
    probability: float  # the model's, given the prefix
    ad: KnownAd
    sids: int  # below the branch
    eligible_sids: int  # those with an ad that the user may see

    @property
    def admitted(self) -> bool:
        return self.eligible_sids > 0


@dataclass(frozen=True, slots=True)
class Step:
    """The branches of one prefix of a SID, the most probable first."""

    chosen: int  # the token of the SID
    branches: tuple[Branch, ...]

    @property
    def pruned(self) -> tuple[Branch, ...]:
        return tuple(branch for branch in self.branches if not branch.admitted)


class Demonstration:
    """
    ads      every ad of the catalogue's folder by its id, with its rules for USER
    clicked  an ad of each SID that the user clicked, oldest first
    request  of the user, as JSON
    """

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self._snapshot = snapshot
        self._model: Model = load_encoder_decoder(CHECKPOINT)
        require_match(self._model.spec, snapshot, CHECKPOINT)
        trie, ids = snapshot.trie, snapshot.ads.ad_ids.tolist()
        self._sids = trie.sids(np.arange(trie.num_leaves)).astype(np.int64)
        self.request: dict[str, Any] = {
            "request_id": "dentist-minneapolis",
            "user": {name: {"values": values} for name, values in USER.items()},
            "at": TUESDAY_10,
            "utc_offset_minutes": UTC_OFFSET_MINUTES,
        }
        self._known = partial(AdsTable(folder).known, ids)
        self.ads = self._known(request_of_json(self.request))
        may_see = {self.ads[ad].title: ad for ad in sorted(ids) if _may_see(self.ads[ad])}
        found = [next(may_see[title] for title in may_see if name in title) for name in CLICKED]
        ordinals = snapshot.ads.ordinals(found)
        leaves = np.searchsorted(snapshot.ads.ad_offsets, ordinals, side="right") - 1
        self.clicked = [self._shown_ad(leaf) for leaf in leaves.tolist()]
        clicks = {"sids": self._sids[leaves].flatten().tolist()}
        self.request["features"] = {"sequences": {"clicks": clicks}}

    def steps(self, sid: Sequence[int]) -> tuple[Step, ...]:
        """Return what the server decides at each token of a SID that it generates."""
        snapshot = self._snapshot
        index = DecodeIndex.of(snapshot, CPU)
        rows = UserEncoder.of(snapshot).encode([request_of_json(self.request)])
        masks = load_ops(CPU).eligible_nodes(UserTensors.of(rows, CPU), index)
        eligible = eligible_at(masks, 0, index)[index.first_leaf :].numpy()
        scores, below, steps = self._scores(), np.arange(len(self._sids)), []
        for position, chosen in enumerate(sid):
            tokens = self._sids[below, position]
            branches = [
                self._branch(position, below[tokens == token], scores, eligible)
                for token in np.unique(tokens)
            ]
            branches.sort(key=lambda branch: -branch.probability)
            steps.append(Step(chosen, tuple(branches)))
            below = below[tokens == chosen]
        return tuple(steps)

    def eligible_ads(self, changes: Mapping[str, Any]) -> int:
        """Count the ads that the user may see with some changes to the request."""
        request = request_of_json({**self.request, **changes})
        return sum(map(_may_see, self._known(request).values()))

    def _branch(
        self,
        position: int,
        below: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        eligible: npt.NDArray[np.bool_],
    ) -> Branch:
        may_see = below[eligible[below]]
        candidates = may_see if len(may_see) else below
        leaf = int(candidates[np.argmax(scores[:, candidates].sum(axis=0))])
        return Branch(
            token=int(self._sids[leaf, position]),
            probability=math.exp(scores[position, below[0]]),
            ad=self._shown_ad(leaf),
            sids=len(below),
            eligible_sids=len(may_see),
        )

    def _shown_ad(self, leaf: int) -> KnownAd:
        """Return the SID's first ad that the user may see; if there is none, its first ad."""
        ads = self._snapshot.ads
        ids = ads.ad_ids[ads.ad_offsets[leaf] : ads.ad_offsets[leaf + 1]].tolist()
        below = [self.ads[ad] for ad in ids]
        return next(filter(_may_see, below), below[0])

    def _scores(self) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token of each SID.   [tokens, SIDs]"""
        message = request_of_json(self.request).SerializeToString()
        context = self._model.user_context(read_inputs(self._model.spec, [message], 1))
        sids, parts = torch.from_numpy(self._sids), []
        with torch.inference_mode():
            for start in range(0, len(sids), ROWS):
                some = sids[start : start + ROWS]
                same = UserContext(
                    context.states.expand(len(some), -1, -1), context.mask.expand(len(some), -1)
                )
                logits = self._model.decoder.sequence_logits(same, some)
                steps = [step.log_softmax(dim=-1) for step in logits]
                parts.append([x.gather(1, some[:, [t]])[:, 0] for t, x in enumerate(steps)])
        scores: npt.NDArray[np.float32] = torch.stack(
            [torch.cat(step) for step in zip(*parts, strict=True)]
        ).numpy()
        return scores


def _may_see(ad: KnownAd) -> bool:
    return all(reason.passes for reason in ad.reasons)
