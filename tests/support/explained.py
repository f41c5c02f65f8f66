"""A catalogue small enough that plain Python says what becomes of every ad of it in a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.serving import ServingConfig
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.model.checkpoints.checkpoint import load_encoder_decoder
from grace.model.checkpoints.init import write_random
from grace.model.definition.model import Model
from grace.model.engine.feature_reader import read_inputs
from grace.proto import retrieval_pb2 as wire
from grace.server.engine.serving_pair import ServingPair, load_pair
from grace.server.messages import PendingRequest, RequestBatch, Retrieval
from support.builds import build_spec, built
from support.decode_cases import admitted_entries
from support.fast_cases import MODELS
from support.models import prefix_scores
from support.oracle import (
    NO_RULE,
    RawAd,
    Rule,
    Rules,
    attribute_passes,
    eligible,
    set_passes,
    within_limits,
)
from support.plain_builder import PLAIN_SID_SPACE, rules_of
from support.stage_cases import message_of
from support.strategies import Case, random_ads, random_users

Outcome = wire.ExplainResponse.Outcome
CPU = torch.device("cpu")
Levels = Mapping[str, set[int]]
TOLERANCE = 2e-5  # float32 sums in another order

SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "SE", "CA"), None, missing_passes_exclude=True),
        Attribute("age", ("18-24", "25-34"), "25-34"),
    ),
    (TargetSet("location", 256, 4, 64),),
    7,
    ("campaign", "advertiser"),
)
MODEL = replace(MODELS["t5"], sid_space=PLAIN_SID_SPACE)
VOCAB_SIZES = MODEL.vocab_sizes
GENERATION = GenerationConfig(
    max_batch=4,
    profiles={"full": BeamProfile((1, 7, 35), 385), "narrow": BeamProfile((1, 3, 6), 9)},
)


@dataclass(frozen=True)
class Scene:
    """`stopped` has what updates stop, by level."""

    pair: ServingPair
    model: Model
    case: Case
    stopped: Levels

    @staticmethod
    def make(folder: Path, mode: MatcherMode, users: int, device: torch.device = CPU) -> "Scene":
        """Half of the rules are dropped, so that users may see about half of the ads."""
        rng = np.random.default_rng(5)
        ads = [
            replace(ad, rules={name: each for name, each in ad.rules.items() if rng.random() < 0.5})
            for ad in random_ads(rng, SCHEMA, VOCAB_SIZES, 333)
        ]
        case = Case(SCHEMA, VOCAB_SIZES, tuple(ads), tuple(random_users(rng, SCHEMA, users)))
        spec = build_spec(folder, case)
        built(spec)
        checkpoint = folder / "checkpoint"
        write_random(MODEL, checkpoint, seed=5, dtype=torch.float32)
        settings: dict[str, Any] = {"precision": "fp32", "memo_bytes": 1 << 22}
        settings["eligibility"] = mode.value
        pair = load_pair(ServingConfig(spec.root, checkpoint, GENERATION, **settings), device)
        stopped = {"ad": {ad.ad_id for ad in ads[::17]}, "campaign": {7}, "advertiser": {111}}
        return Scene(pair, load_encoder_decoder(checkpoint), case, stopped)

    def request(self, rng: np.random.Generator, number: int) -> dict[str, Any]:
        """Return a request of a user with limits that often cut."""
        ids = [ad.ad_id for ad in self.case.ads]
        user = self.case.users[number % len(self.case.users)]
        campaigns = [63, 2**63 - 1] if rng.random() < 0.5 else []
        limits = {"campaign": 1, "advertiser": 2} if rng.random() < 0.5 else {}
        clicks = rng.integers(5, size=3 * int(rng.integers(1, 7))).tolist()
        return {
            "request_id": f"r{number}",
            "user": {name: _values(given) for name, given in user.items()},
            "features": {"sequences": {"clicks": {"sids": clicks}}},
            "max_ads": int(rng.choice([3, 11, 1000])),
            "profile": str(rng.choice([*GENERATION.profiles])),
            "exclude_ads": rng.choice(ids, 30, replace=False).tolist(),
            "exclude": {"campaign": {"ids": campaigns}, "ad": {"ids": ids[:99]}},  # no entity
            "at_most": limits,
        }

    def batch(self, retrieval: Retrieval) -> RequestBatch:
        return RequestBatch(
            pair=self.pair,
            profile_name=retrieval.profile,
            profile=GENERATION.profiles[retrieval.profile],
            bucket=1,
            requests=(PendingRequest(retrieval, 0.0, float("inf")),),
        )


def _values(given: Sequence[str] | float) -> dict[str, Any]:
    return {"values": [*given]} if isinstance(given, Sequence) else {"number": given}


def named(ad: RawAd, levels: Levels) -> dict[str, int]:
    """Return the ad's ids that are named, by level."""
    own = {"ad": ad.ad_id, **ad.entities}
    return {level: own[level] for level in own if own[level] in levels.get(level, ())}


@dataclass(frozen=True)
class PlainStep:
    """The candidates of a step with their scores, and those that it keeps, best first."""

    candidates: Mapping[tuple[int, ...], float]
    kept: Sequence[tuple[int, ...]]


class PlainRequest:
    """What becomes of each ad in a request, from scores of whole SIDs and sets of strings."""

    def __init__(self, scene: Scene, request: Mapping[str, Any]) -> None:
        self._scene, self.request = scene, request
        self.user = {name: given["values"] for name, given in request["user"].items()}
        self.exclude = {
            **{name: set(given["ids"]) for name, given in request["exclude"].items()},
            "ad": set(request["exclude_ads"]),
        }

    @cached_property
    def steps(self) -> list[PlainStep]:
        scores, admitted = self._prefix_scores(), self._admitted()
        profile = GENERATION.profiles[self.request["profile"]]
        beams: Sequence[tuple[int, ...]] = [()]
        steps = []
        for step in range(len(VOCAB_SIZES)):
            found = {
                prefix: score
                for prefix, score in scores.items()
                if len(prefix) == step + 1 and prefix[:-1] in beams and prefix in admitted
            }
            best = sorted(found, key=lambda prefix: -found[prefix])
            beams = best[: profile.kept_after(step)]
            steps.append(PlainStep(found, beams))
        return steps

    def failed_rules(self, ad: RawAd) -> set[str]:
        """Those of the first clause of which the fewest fail."""
        return min(map(self._failed_of, rules_of(ad)), key=len)

    def _failed_of(self, rules: Rules) -> set[str]:
        def given(name: str) -> tuple[Rule, Sequence[str]]:
            return rules.get(name, NO_RULE), self.user.get(name, ())

        of_attributes = {
            each.name for each in SCHEMA.attributes if not attribute_passes(each, *given(each.name))
        }
        return of_attributes | {
            each.name
            for each in SCHEMA.sets
            if not set_passes(each, *given(each.name))
            or any(g.isdisjoint(given(each.name)[1]) for g in rules.get(f"{each.name}_all", ()))
        }

    @cached_property
    def matched(self) -> list[RawAd]:
        """The ads that are generated and may be returned, best first."""
        last = self.steps[-1]
        ads = [
            ad
            for ad in self._scene.case.ads
            if ad.sid in last.kept
            and eligible(SCHEMA, ad, self.user)
            and not named(ad, self._scene.stopped)
            and not named(ad, self.exclude)
        ]
        return sorted(ads, key=lambda ad: (-last.candidates[ad.sid], -ad.weight, ad.ad_id))

    @cached_property
    def ranked(self) -> list[int]:
        """The ids of matched ads that `at_most` leaves."""
        chosen = within_limits(self.matched, self.request["at_most"], len(self.matched))
        return [self.matched[place].ad_id for place in chosen.places]

    def outcome(self, ad: RawAd) -> Outcome:
        if named(ad, self._scene.stopped):
            return Outcome.OUTCOME_STOPPED
        if self.failed_rules(ad):
            return Outcome.OUTCOME_NOT_ELIGIBLE
        if ad.sid not in self.steps[-1].kept:
            return Outcome.OUTCOME_OUT_OF_BEAM
        if named(ad, self.exclude):
            return Outcome.OUTCOME_EXCLUDED
        if ad.ad_id not in self.ranked:
            return Outcome.OUTCOME_AT_MOST
        if self.ranked.index(ad.ad_id) >= self.request["max_ads"]:
            return Outcome.OUTCOME_MAX_ADS
        return Outcome.OUTCOME_RETURNED

    def assert_explained(self, ad: RawAd, explained: wire.ExplainResponse) -> None:
        """Compare everything in an explanation with what is plain here."""
        assert explained.outcome == self.outcome(ad), explained
        assert tuple(explained.sid) == ad.sid
        assert of_levels(explained.stops) == named(ad, self._scene.stopped)
        assert of_levels(explained.excluded_by) == named(ad, self.exclude)
        failed = {rule.name for rule in explained.rules if not rule.passes}
        assert failed == self.failed_rules(ad)
        if explained.outcome == Outcome.OUTCOME_NOT_ELIGIBLE and len(ad.clauses) > 1:
            assert explained.text.endswith(f"(the nearest of {len(ad.clauses)} alternatives)")
        for rule in explained.rules:
            assert list(rule.user) == list(self.user.get(rule.name, ()))
            stand_in = {each.missing for each in SCHEMA.attributes if each.name == rule.name}
            assert set(rule.deciding) <= (set(rule.user) or stand_in)
        self._assert_steps(ad, explained)
        if ad in self.matched and ad.ad_id in self.ranked:
            assert explained.rank == self.ranked.index(ad.ad_id) + 1
        else:
            assert explained.rank == 0
        if explained.HasField("limited_by"):
            self._assert_limited(ad, explained.limited_by)

    def _assert_steps(self, ad: RawAd, explained: wire.ExplainResponse) -> None:
        for length, (step, plain) in enumerate(zip(explained.steps, self.steps, strict=False), 1):
            prefix = ad.sid[:length]
            assert (step.token, step.candidates) == (prefix[-1], len(plain.candidates))
            assert step.admitted == (prefix in plain.candidates)
            assert step.kept == (prefix in plain.kept)
            assert step.beams == len(plain.kept)
            if plain.kept:
                lowest = plain.candidates[plain.kept[-1]]
                assert abs(step.lowest_score - lowest) < TOLERANCE
            if not step.admitted:
                assert (step.HasField("score"), step.rank) == (False, 0)
                continue
            score, others = plain.candidates[prefix], plain.candidates.values()
            assert abs(step.score - score) < TOLERANCE
            better = sum(other > score + TOLERANCE for other in others)
            maybe = sum(other > score - TOLERANCE for other in others)
            assert better < step.rank <= maybe
        assert all(step.kept for step in explained.steps[:-1])
        assert len(explained.steps) == len(ad.sid) or not explained.steps[-1].kept
        assert explained.HasField("score") == (ad.sid in self.steps[-1].kept)

    def _assert_limited(self, ad: RawAd, limited: wire.LevelId) -> None:
        better = self.matched[: self.matched.index(ad)]
        of_entity = [
            other
            for other in better
            if other.ad_id in self.ranked and other.entities.get(limited.level) == limited.id
        ]
        assert ad.entities[limited.level] == limited.id
        assert len(of_entity) == self.request["at_most"][limited.level]

    def _prefix_scores(self) -> dict[tuple[int, ...], float]:
        model = self._scene.model
        inputs = read_inputs(model.spec, [message_of(self.request)], 1)
        context = model.user_context(inputs)
        sids = sorted({ad.sid for ad in self._scene.case.ads})
        scores: dict[tuple[int, ...], float] = {}
        totals = prefix_scores(model.decoder, context, 0, torch.tensor(sids))
        for sid, of_sid in zip(sids, totals.tolist(), strict=True):
            for length, score in enumerate(of_sid, 1):
                scores[sid[:length]] = score
        return scores

    def _admitted(self) -> set[tuple[int, ...]]:
        snapshot = self._scene.pair.snapshot
        if snapshot.mode is MatcherMode.EXACT:
            return {
                ad.sid[:length]
                for ad in self._scene.case.ads
                if eligible(SCHEMA, ad, self.user) and not named(ad, self._scene.stopped)
                for length in (1, 2, 3)
            }
        rows = self._scene.pair.users.encode([self.user])
        admitted = admitted_entries(snapshot, rows, 0)
        prefixes = {ad.sid[:length] for ad in self._scene.case.ads for length in (1, 2, 3)}
        return {prefix for prefix in prefixes if admitted[snapshot.trie.walk(prefix) - 1]}


def of_levels(ids: Any) -> dict[str, int]:
    return {each.level: each.id for each in ids}
