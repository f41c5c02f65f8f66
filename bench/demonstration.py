"""One request from its JSON to its ads, in one process: what `grace demo` shows.

The request is answered twice: decoding with targeting, as GRACE does, and with the catalogue alone,
as constrained decoding does, so that one can see what targeting inside the decoder gives.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import configs
import model
from configs.generation import BeamProfile
from index.admission import admitted_entries
from index.exact import ExactMatcher, MatchedAds
from index.explain import Reason, explain
from index.snapshot import Snapshot
from index.trie import NO_NODE
from index.users import UserAttributes, UserEncoder, UserRows
from kernels import DecodeIndex, UserTensors, load_ops
from model.beam_search import beam_search
from model.checkpoint import load_checkpoint, require_match
from model.features_json import features_of_json
from model.input_encoding import encode_inputs
from model.inputs import ModelInputs, UserContext
from model.model import Model
from model.train.recipe import load_recipe

__all__ = ["CHECKPOINT", "Answer", "DemonstratedAd", "Demonstration", "Outcome", "shopper"]

CHECKPOINT = Path(model.__file__).parent / "demo"
RECIPE = Path(configs.__file__).parent / "demo.yaml"
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class DemonstratedAd:
    """`reasons` are all of a returned ad's rules, or the failed ones of a refused ad's."""

    ad_id: int
    probability: float  # the model's, of the ad's SID
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the generated SIDs of one way of decoding."""

    sids: int
    ads: int
    matched: int


@dataclass(frozen=True, slots=True)
class Answer:
    user: UserAttributes
    clicks: tuple[int, ...]  # an ad of each clicked SID, newest first
    admitted_sids: int
    ads: tuple[DemonstratedAd, ...]  # best first
    refused: DemonstratedAd | None
    with_targeting: Outcome
    catalogue_alone: Outcome


@dataclass(frozen=True, slots=True)
class _Sids:
    """The live SIDs of one search, best first.   int32 [n], float32 [n]"""

    leaves: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def shopper(snapshot: Snapshot, titles: Mapping[int, str], wanted: str) -> dict[str, Any]:
    """A request from San Francisco, after four clicks on ads with `wanted` in their titles."""
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
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._model: Model = load_checkpoint(CHECKPOINT)
        require_match(self._model.spec, snapshot, CHECKPOINT)
        self._profile: BeamProfile = load_recipe(RECIPE, snapshot).generation.profiles["full"]
        self._encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        self._matcher = ExactMatcher(snapshot, threads=1)

    def answer(self, request: Mapping[str, Any], max_ads: int) -> Answer:
        user = {name: tuple(value["values"]) for name, value in request["user"].items()}
        rows = self._encoder.encode([user])
        context = self._model.user_context(self._inputs(request))
        index = DecodeIndex.of(self._snapshot, CPU)
        targeted = self._generate(context, rows, index)
        alone = self._generate(context, rows, index.without_matchers())
        admitted = admitted_entries(self._snapshot, rows, 0)
        return Answer(
            user=user,
            clicks=self._clicks(request),
            admitted_sids=int(admitted[self._snapshot.trie.first_leaf - 1 :].sum()),
            ads=self._ads(rows, targeted, user, max_ads),
            refused=self._refused(targeted, user),
            with_targeting=self._outcome(rows, targeted),
            catalogue_alone=self._outcome(rows, alone),
        )

    def _inputs(self, request: Mapping[str, Any]) -> ModelInputs:
        features = features_of_json(request["features"])
        return encode_inputs(self._model.spec, [features]).inputs

    def _generate(self, context: UserContext, rows: UserRows, index: DecodeIndex) -> _Sids:
        users = UserTensors.of(rows, CPU)
        found = beam_search(
            self._model.decoder, context, users, index, self._profile, load_ops(CPU)
        )
        live = found.leaves[0] != NO_NODE
        return _Sids(found.leaves[0][live].numpy(), found.scores[0][live].numpy())

    def _match(self, rows: UserRows, sids: _Sids, max_ads: int) -> MatchedAds:
        offsets = np.array([0, len(sids.leaves)])
        return self._matcher.match(rows, offsets, sids.leaves, sids.scores, max_ads)

    def _outcome(self, rows: UserRows, sids: _Sids) -> Outcome:
        counts = self._match(rows, sids, max_ads=0).counts
        return Outcome(len(sids.leaves), int(counts.generated[0]), int(counts.matched[0]))

    def _ads(
        self, rows: UserRows, sids: _Sids, user: UserAttributes, max_ads: int
    ) -> tuple[DemonstratedAd, ...]:
        matched = self._match(rows, sids, max_ads)
        return tuple(
            DemonstratedAd(ad_id, math.exp(score), self._reasons(ad_id, user))
            for ad_id, score in zip(matched.ad_ids.tolist(), matched.scores.tolist(), strict=True)
        )

    def _refused(self, sids: _Sids, user: UserAttributes) -> DemonstratedAd | None:
        """The best ad that shares a generated SID with eligible ones, but is not for this user."""
        ads = self._snapshot.ads
        for leaf, score in zip(sids.leaves.tolist(), sids.scores.tolist(), strict=True):
            for ad_id in ads.ad_ids[ads.ad_offsets[leaf] : ads.ad_offsets[leaf + 1]].tolist():
                failed = tuple(r for r in self._reasons(ad_id, user) if not r.passes)
                if failed:
                    return DemonstratedAd(ad_id, math.exp(score), failed)
        return None

    def _reasons(self, ad_id: int, user: UserAttributes) -> tuple[Reason, ...]:
        return explain(self._snapshot, int(self._snapshot.ads.ordinals([ad_id])[0]), user)

    def _clicks(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        """An ad of each clicked SID, newest first."""
        trie, ads = self._snapshot.trie, self._snapshot.ads
        flat = request["features"]["sequences"]["clicks"]["sids"]
        sids = [tuple(flat[i : i + trie.sid_length]) for i in range(0, len(flat), trie.sid_length)]
        leaves = [trie.walk(sid) - trie.first_leaf for sid in reversed(sids)]
        return tuple(int(ads.ad_ids[ads.ad_offsets[leaf]]) for leaf in leaves)
