"""Compute what `grace demo` shows: one SID, token by token.

The model scores every SID of the catalogue. So each token that the server admits or prunes can be
shown with an ad that it leads to.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from grace import model
from grace.client.request_json import request_of_json
from grace.index.forms.component import Reason
from grace.index.matching.explain import explain
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserAttributes, UserEncoder
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.kernels.eligibility.masks import has_bit
from grace.model.checkpoints.checkpoint import load_checkpoint, require_match
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.feature_reader import read_inputs
from grace.proto.retrieval_pb2 import RetrieveResponse

CHECKPOINT = Path(model.__file__).parent / "demo"
CPU = torch.device("cpu")
CLICKED = ("physiotherapy clinic", "eye test", "orthodontist", "dental clinic")
"""Products that the demonstration's user clicked, oldest first."""

ROWS = 256
"""SIDs that the model scores at once."""

Request = Mapping[str, Any]
"""A request, as JSON."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A token that continues a prefix in the catalogue, and where it leads.

    `title` is an ad of the most probable SID below. If the server admits the branch, the user may
    see that ad; if it prunes the branch, `failed` are the rules of the ad that do not allow it.
    """

    token: int
    probability: float  # the model's, given the prefix
    title: str
    failed: tuple[Reason, ...]
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


@dataclass(frozen=True, slots=True)
class ReturnedAd:
    """An ad of a reply, with all its rules."""

    ad_id: int
    title: str
    probability: float  # the model's, of the ad's SID
    reasons: tuple[Reason, ...]


def patient(snapshot: Snapshot, titles: Mapping[int, str]) -> dict[str, Any]:
    """Return a request from Minneapolis, after clicks on four ads that the user may see."""
    ads, trie = snapshot.ads, snapshot.trie
    user = {
        "country": ["US"],
        "age": ["25-34"],
        "gender": ["female"],
        "device": ["phone"],
        "language": ["en"],
        "location": ["us", "us/mn", "us/mn/minneapolis"],
    }
    ordinals = ads.ordinals(sorted(titles)).tolist()
    may_see = {
        titles[ad_id]: ordinal
        for ad_id, ordinal in zip(sorted(titles), ordinals, strict=True)
        if all(reason.passes for reason in explain(snapshot, ordinal, user))
    }
    found = [next(may_see[title] for title in may_see if name in title) for name in CLICKED]
    sids = trie.sids(np.searchsorted(ads.ad_offsets, found, side="right") - 1).flatten().tolist()
    return {
        "request_id": "dentist-minneapolis",
        "user": {name: {"values": values} for name, values in user.items()},
        "features": {"sequences": {"clicks": {"sids": sids}}},
    }


class Demonstration:
    def __init__(self, snapshot: Snapshot, titles: Mapping[int, str]) -> None:
        self._snapshot = snapshot
        self._titles = titles
        self._model: Model = load_checkpoint(CHECKPOINT)
        require_match(self._model.spec, snapshot, CHECKPOINT)
        self._encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        self._sids = snapshot.trie.sids(np.arange(snapshot.trie.num_leaves)).astype(np.int64)

    def clicked(self, request: Request) -> list[tuple[str, str]]:
        """Return an ad of each clicked SID, and why the user may see it, newest first."""
        user, tokens = user_of(request), request["features"]["sequences"]["clicks"]["sids"]
        ads = [self._shown_ad(leaf, user) for leaf in reversed(self._leaves(tokens))]
        assert not any(failed for _, failed in ads), "a click on an ineligible ad"
        return [
            (self._titles[ad_id], "; ".join(map(str, self._reasons(ad_id, user))))
            for ad_id, _ in ads
        ]

    def returned(self, request: Request, reply: RetrieveResponse) -> tuple[ReturnedAd, ...]:
        """Return the ads of a reply, best first."""
        user = user_of(request)
        ads = tuple(
            ReturnedAd(ad_id, self._titles[ad_id], math.exp(score), self._reasons(ad_id, user))
            for ad_id, score in zip(reply.ad_ids, reply.scores, strict=True)
        )
        assert all(reason.passes for ad in ads for reason in ad.reasons), "an ineligible ad"
        return ads

    def steps(self, request: Request, sid: Sequence[int]) -> tuple[Step, ...]:
        """Return what the server decides at each token of a SID that it generates."""
        index, user = DecodeIndex.of(self._snapshot, CPU), user_of(request)
        rows = UserTensors.of(self._encoder.encode([user]), CPU)
        nodes = load_ops(CPU).eligible_nodes(rows, index)
        eligible = has_bit(nodes, 0).numpy()[index.first_leaf :]
        scores, below, steps = self._scores(request), np.arange(len(self._sids)), []
        for position, chosen in enumerate(sid):
            tokens = self._sids[below, position]
            branches = [
                self._branch(position, below[tokens == token], scores, eligible, user)
                for token in np.unique(tokens)
            ]
            branches.sort(key=lambda branch: -branch.probability)
            steps.append(Step(chosen, tuple(branches)))
            below = below[tokens == chosen]
        return tuple(steps)

    def _branch(
        self,
        position: int,
        below: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        eligible: npt.NDArray[np.bool_],
        user: UserAttributes,
    ) -> Branch:
        may_see = below[eligible[below]]
        candidates = may_see if len(may_see) else below
        leaf = int(candidates[np.argmax(scores[:, candidates].sum(axis=0))])
        ad_id, failed = self._shown_ad(leaf, user)
        return Branch(
            token=int(self._sids[leaf, position]),
            probability=math.exp(scores[position, below[0]]),
            title=self._titles[ad_id],
            failed=failed,
            sids=len(below),
            eligible_sids=len(may_see),
        )

    def _shown_ad(self, leaf: int, user: UserAttributes) -> tuple[int, tuple[Reason, ...]]:
        """Return the SID's first ad that the user may see; if there is none, its first ad."""
        ads = self._snapshot.ads
        below = ads.ad_ids[ads.ad_offsets[leaf] : ads.ad_offsets[leaf + 1]].tolist()
        failed = [
            tuple(reason for reason in self._reasons(ad_id, user) if not reason.passes)
            for ad_id in below
        ]
        place = failed.index(()) if () in failed else 0
        return below[place], failed[place]

    def _scores(self, request: Request) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token of each SID.   [tokens, SIDs]"""
        context, sids, parts = self._context(request), torch.from_numpy(self._sids), []
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

    def _context(self, request: Request) -> UserContext:
        message = request_of_json(request).SerializeToString()
        return self._model.user_context(read_inputs(self._model.spec, [message], 1))

    def _reasons(self, ad_id: int, user: UserAttributes) -> tuple[Reason, ...]:
        return explain(self._snapshot, int(self._snapshot.ads.ordinals([ad_id])[0]), user)

    def _leaves(self, tokens: Sequence[int]) -> list[int]:
        """The leaves of SIDs whose tokens follow one another."""
        trie, length = self._snapshot.trie, self._snapshot.trie.sid_length
        sids = (tuple(tokens[i : i + length]) for i in range(0, len(tokens), length))
        return [trie.walk(sid) - trie.first_leaf for sid in sids]


def user_of(request: Request) -> UserAttributes:
    return {name: tuple(value["values"]) for name, value in request["user"].items()}
