"""Explanations agree with plain Python and with the reply, for every outcome and mode."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from grace.configs.serving import UpdatesConfig
from grace.index.matchers.modes import MatcherMode
from grace.proto import retrieval_pb2 as wire
from grace.server.stages.explanation import explain_ad
from grace.server.stages.stages import STAGES
from grace.server.updates.ad_updates import AdUpdates
from support.explained import Outcome, PlainRequest, Scene
from support.oracle import RawAd
from support.stage_cases import answer, replies_of
from support.update_calls import update

USERS = 60
OF_EACH = 100
REASONS = {
    Outcome.OUTCOME_RETURNED,
    Outcome.OUTCOME_STOPPED,
    Outcome.OUTCOME_NOT_ELIGIBLE,
    Outcome.OUTCOME_OUT_OF_BEAM,
    Outcome.OUTCOME_EXCLUDED,
    Outcome.OUTCOME_AT_MOST,
    Outcome.OUTCOME_MAX_ADS,
}
"""The reasons that random requests have for ads of the catalogue."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def nothing(*given: object) -> None:
    pass


class Explainer:
    """A scene whose stops come from real updates."""

    def __init__(self, scene: Scene, updates: AdUpdates) -> None:
        self.scene, self._updates = scene, updates

    def explain(self, ad_id: int, request: Mapping[str, Any]) -> wire.ExplainResponse:
        batch = self.scene.batch(request)
        stops = self._updates.stops_among
        return explain_ad(ad_id, batch, STAGES, stops, lambda: None)

    def reply(self, request: Mapping[str, Any]) -> wire.RetrieveResponse:
        (reply,) = replies_of(answer(self.scene.batch(request))).values()
        return reply


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[MatcherMode], Explainer]]:
    opened: dict[MatcherMode, tuple[Explainer, AdUpdates]] = {}

    def of(mode: MatcherMode) -> Explainer:
        if mode not in opened:
            folder = tmp_path_factory.mktemp(mode)
            scene = Scene.make(folder, mode, USERS)
            updates = AdUpdates(folder / "state", UpdatesConfig(), nothing, nothing, nothing)
            updates.start()
            updates.attach(scene.pair)
            stops = update(1, stop=scene.stopped).SerializeToString()
            updates.submit(stops).result(60)
            opened[mode] = Explainer(scene, updates), updates
        return opened[mode][0]

    yield of
    for _, updates in opened.values():
        updates.close(30.0)


@pytest.fixture(scope="module")
def explainer(make: Callable[[MatcherMode], Explainer]) -> Explainer:
    return make(MatcherMode.UNION)


def check(explainer: Explainer, seed: int, of_each: int, requests: int) -> Counter[Outcome]:
    """Explain random ads, and some of each outcome, for random requests; return the outcomes."""
    rng = np.random.default_rng(seed)
    seen: Counter[Outcome] = Counter()
    for number in range(requests):
        request = explainer.scene.request(rng, number)
        plain, reply = PlainRequest(explainer.scene, request), explainer.reply(request)
        ads = [explainer.scene.case.ads[i] for i in rng.permutation(len(explainer.scene.case.ads))]
        some: Counter[Outcome] = Counter()
        for place, ad in enumerate(ads):
            outcome = plain.outcome(ad)
            some[outcome] += 1
            if place >= of_each and some[outcome] > of_each:
                continue
            explained = explainer.explain(ad.ad_id, request)
            plain.assert_explained(ad, explained)
            assert_as_replied(ad, explained, reply)
            seen[outcome] += 1
    return seen


def assert_as_replied(
    ad: RawAd, explained: wire.ExplainResponse, reply: wire.RetrieveResponse
) -> None:
    returned = list(reply.ad_ids)
    assert (explained.outcome == Outcome.OUTCOME_RETURNED) == (ad.ad_id in returned)
    assert (explained.snapshot_version, explained.checkpoint, explained.profile) == (
        *(reply.snapshot_version, reply.checkpoint, reply.profile),
    )
    assert list(explained.ignored_names) == list(reply.ignored_names)
    if ad.ad_id in returned:
        place = returned.index(ad.ad_id)
        assert explained.rank == place + 1
        assert explained.score == reply.scores[place]
    length = reply.sids.length
    sids = [tuple(reply.sids.tokens[i : i + length]) for i in range(0, 10**4, length)]
    scores = dict(zip(sids, reply.sids.scores, strict=False))
    assert explained.HasField("score") == (ad.sid in scores)
    assert explained.score == scores.get(ad.sid, 0.0)


def test_explanations_are_those_of_plain_python_and_of_the_reply(explainer: Explainer) -> None:
    seen = check(explainer, seed=1, of_each=3, requests=USERS)
    assert sum(seen.values()) >= 1000
    assert set(seen) == REASONS
    assert min(seen.values()) >= OF_EACH, seen


@pytest.mark.parametrize("mode", [MatcherMode.CD, MatcherMode.STATIC, MatcherMode.DYNAMIC])
def test_explanations_do_not_depend_on_the_mode(
    make: Callable[[MatcherMode], Explainer], mode: MatcherMode
) -> None:
    assert set(check(make(mode), seed=2, of_each=1, requests=11)) <= REASONS
