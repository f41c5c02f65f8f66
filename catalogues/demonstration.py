"""The explanations of `grace demo`: why a reply holds these ads, and what targeting adds.

The server decodes with targeting. Here the same request is also decoded with the catalogue alone,
as plain constrained decoding does, to show the difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace import model
from grace.client.request_json import request_of_json
from grace.configs.generation import BeamProfile
from grace.index.matchers.admission import admitted_entries
from grace.index.matching.exact import ExactMatcher
from grace.index.matching.explain import Reason, explain
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.model.checkpoints.checkpoint import load_checkpoint, require_match
from grace.model.definition.beam_search import beam_search
from grace.model.definition.model import Model
from grace.model.engine.feature_reader import read_inputs
from grace.proto.retrieval_pb2 import RetrieveResponse

CHECKPOINT = Path(model.__file__).parent / "demo"
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class DemonstratedAd:
    """`reasons` are all rules of a returned ad, or the failed rules of a refused one."""

    place: int  # in the reply, from 1; 0 for an ad that is not in it
    ad_id: int
    probability: float  # the model's, of the ad's SID
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of one way of decoding: SIDs generated, their ads, and ads the user may see.

    `grace demo` prints matched / ads, the share of these ads that the user may see.
    """

    sids: int
    ads: int
    matched: int


@dataclass(frozen=True, slots=True)
class Explanation:
    user: UserAttributes
    clicks: tuple[int, ...]  # an ad of each clicked SID, newest first
    admitted_sids: int
    ads: tuple[DemonstratedAd, ...]  # all of the reply, best first
    refused: DemonstratedAd | None
    with_targeting: Outcome
    catalogue_alone: Outcome


def shopper(snapshot: Snapshot, titles: Mapping[int, str], wanted: str) -> dict[str, Any]:
    """Return a request from San Francisco, after four clicks on ads with `wanted` in the title."""
    ads, trie = snapshot.ads, snapshot.trie
    found = [ad_id for ad_id in sorted(titles) if wanted in titles[ad_id]]
    leaves = np.searchsorted(ads.ad_offsets, ads.ordinals(found), side="right") - 1
    clicked = list(dict.fromkeys(leaves.tolist()))[:4]
    user = {
        "country": ["US"],
        "age": ["25-34"],
        "gender": ["female"],
        "device": ["phone"],
        "language": ["en"],
        "location": ["us", "us/ca", "us/ca/san-francisco"],
    }
    sids = trie.sids(np.array(clicked, np.int64)).flatten().tolist()
    return {
        "request_id": f"{wanted.replace(' ', '-')}-san-francisco",
        "user": {name: {"values": values} for name, values in user.items()},
        "features": {"sequences": {"clicks": {"sids": sids}}},
    }


class Demonstration:
    def __init__(self, snapshot: Snapshot, profile: BeamProfile) -> None:
        self._snapshot = snapshot
        self._profile = profile
        self._model: Model = load_checkpoint(CHECKPOINT)
        require_match(self._model.spec, snapshot, CHECKPOINT)
        self._encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        self._matcher = ExactMatcher(snapshot, threads=1)

    def explain(self, request: Mapping[str, Any], reply: RetrieveResponse) -> Explanation:
        """Explain the reply to a request (as JSON) that asked for SIDs."""
        user = {name: tuple(value["values"]) for name, value in request["user"].items()}
        rows = self._encoder.encode([user])
        admitted = admitted_entries(self._snapshot, rows, 0)
        counts = reply.counts
        return Explanation(
            user=user,
            clicks=self._clicks(request),
            admitted_sids=int(admitted[self._snapshot.trie.first_leaf - 1 :].sum()),
            ads=self._ads(reply, user),
            refused=self._refused(reply, user),
            with_targeting=Outcome(counts.sids_generated, counts.ads_generated, counts.ads_matched),
            catalogue_alone=self._catalogue_alone(request, rows),
        )

    def _catalogue_alone(self, request: Mapping[str, Any], rows: UserRows) -> Outcome:
        message = request_of_json(request).SerializeToString()
        context = self._model.user_context(read_inputs(self._model.spec, [message], 1))
        index = DecodeIndex.of(self._snapshot, CPU).without_matchers()
        users, ops = UserTensors.of(rows, CPU), load_ops(CPU)
        found = beam_search(self._model.decoder, context, users, index, self._profile, ops)
        found.require_finite()
        live = found.leaves[0] != NO_NODE
        leaves, scores = found.leaves[0][live].numpy(), found.scores[0][live].numpy()
        offsets = np.array([0, len(leaves)])
        counts = self._matcher.match(rows, offsets, leaves, scores, max_ads=0).counts
        return Outcome(len(leaves), int(counts.generated[0]), int(counts.matched[0]))

    def _ads(self, reply: RetrieveResponse, user: UserAttributes) -> tuple[DemonstratedAd, ...]:
        ads = tuple(
            DemonstratedAd(place, ad_id, math.exp(score), self._reasons(ad_id, user))
            for place, (ad_id, score) in enumerate(
                zip(reply.ad_ids, reply.scores, strict=True), start=1
            )
        )
        assert all(reason.passes for ad in ads for reason in ad.reasons), "an ineligible ad"
        return ads

    def _refused(self, reply: RetrieveResponse, user: UserAttributes) -> DemonstratedAd | None:
        """The best ad under a generated SID that is not for this user."""
        ads = self._snapshot.ads
        leaves = self._leaves(reply.sids.tokens)
        for leaf, score in zip(leaves, reply.sids.scores, strict=True):
            for ad_id in ads.ad_ids[ads.ad_offsets[leaf] : ads.ad_offsets[leaf + 1]].tolist():
                failed = tuple(r for r in self._reasons(ad_id, user) if not r.passes)
                if failed:
                    return DemonstratedAd(0, ad_id, math.exp(score), failed)
        return None

    def _reasons(self, ad_id: int, user: UserAttributes) -> tuple[Reason, ...]:
        return explain(self._snapshot, int(self._snapshot.ads.ordinals([ad_id])[0]), user)

    def _clicks(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        """An ad of each clicked SID, newest first."""
        ads = self._snapshot.ads
        leaves = self._leaves(request["features"]["sequences"]["clicks"]["sids"])
        return tuple(int(ads.ad_ids[ads.ad_offsets[leaf]]) for leaf in reversed(leaves))

    def _leaves(self, tokens: Sequence[int]) -> list[int]:
        """The leaves of SIDs whose tokens follow one another."""
        trie, length = self._snapshot.trie, self._snapshot.trie.sid_length
        sids = (tuple(tokens[i : i + length]) for i in range(0, len(tokens), length))
        return [trie.walk(sid) - trie.first_leaf for sid in sids]
