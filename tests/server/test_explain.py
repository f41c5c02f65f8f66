"""Explanations agree with plain Python and with the reply, for every outcome."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.serving import LimitsConfig, UpdatesConfig
from grace.index.updates.live_ads import LiveView
from grace.kernels import load_ops
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.feature_stage import FastStage
from grace.model.engine.generation import EngineSettings
from grace.proto import retrieval_pb2 as wire
from grace.server.ad_updates import AdUpdates
from grace.server.messages import GeneratedBatch, InputBatch, RequestBatch, Retrieval
from grace.server.stages.explanation import explain_ad
from grace.server.stages.requests import read_request
from grace.server.stages.stages import STAGES, Stages
from support.explained import GENERATION, Outcome, PlainRequest, Scene, named
from support.oracle import RawAd
from support.stage_cases import answer, message_of, replies_of
from support.update_calls import Levels, update

USERS = 11
OF_EACH = 8
RARE = {
    Outcome.OUTCOME_OUT_OF_BEAM,
    Outcome.OUTCOME_EXCLUDED,
    Outcome.OUTCOME_AT_MOST,
    Outcome.OUTCOME_MAX_ADS,
}
REASONS = RARE | {Outcome.OUTCOME_RETURNED, Outcome.OUTCOME_STOPPED, Outcome.OUTCOME_NOT_ELIGIBLE}
"""The reasons that random requests have for ads of the catalogue."""


def always(stops: Mapping[str, int], levels: Mapping[str, int]) -> Mapping[str, int]:
    assert stops.items() <= levels.items()
    return stops


def nothing(*given: object) -> None:
    pass


def read(request: Mapping[str, Any]) -> Retrieval:
    return read_request(message_of(request), LimitsConfig(), GENERATION)


class Explainer:
    """A scene whose stops come from real updates."""

    def __init__(self, scene: Scene, updates: AdUpdates) -> None:
        self.scene, self._updates = scene, updates

    def explain(
        self, ad_id: int, request: Retrieval, stages: Stages = STAGES
    ) -> wire.ExplainResponse:
        batch = self.scene.batch(request)
        return explain_ad(ad_id, batch, stages, self._updates.stops_among, nothing)

    def update(self, **changes: Levels) -> None:
        sequence = self._updates.facts.sequence + 1
        message = update(sequence, **changes).SerializeToString()  # type: ignore[arg-type]
        self._updates.submit(message).result(60)

    def reply(self, request: Retrieval) -> wire.RetrieveResponse:
        (reply,) = replies_of(answer(self.scene.batch(request))).values()
        return reply


@contextmanager
def explaining(folder: Path, mode: MatcherMode) -> Iterator[Explainer]:
    scene = Scene.make(folder, mode, USERS)
    updates = AdUpdates(folder / "state", UpdatesConfig(), nothing, nothing, nothing)
    updates.start()
    updates.attach(scene.pair)
    explainer = Explainer(scene, updates)
    explainer.update(stop=scene.stopped)
    yield explainer
    updates.close(30.0)


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explainer]:
    with explaining(tmp_path_factory.mktemp("explained"), MatcherMode.EXACT) as made:
        yield made


def test_explanations_are_those_of_plain_python_and_of_the_reply(explainer: Explainer) -> None:
    """Explain random ads, and some of each outcome, for random requests."""
    rng = np.random.default_rng(1)
    seen: Counter[Outcome] = Counter()
    for number in range(USERS):
        request = explainer.scene.request(rng, number)
        plain, retrieval = PlainRequest(explainer.scene, request), read(request)
        reply = explainer.reply(retrieval)
        ads = [explainer.scene.case.ads[i] for i in rng.permutation(len(explainer.scene.case.ads))]
        some: Counter[Outcome] = Counter()
        for place, ad in enumerate(ads):
            outcome = plain.outcome(ad)
            some[outcome] += 1
            if place >= 2 and some[outcome] > (4 if outcome in RARE else 2):
                continue
            explained = explainer.explain(ad.ad_id, retrieval)
            plain.assert_explained(ad, explained)
            assert_as_replied(ad, explained, reply)
            seen[outcome] += 1
    assert sum(seen.values()) >= 10 * OF_EACH
    assert set(seen) == REASONS
    assert min(seen.values()) >= OF_EACH, seen


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


def test_ads_that_the_catalogue_does_not_have_are_named(explainer: Explainer) -> None:
    known = {ad.ad_id for ad in explainer.scene.case.ads}
    request = read(explainer.scene.request(np.random.default_rng(3), 0))
    unknown = [ad_id for ad_id in (*range(150), -1, 2**63 - 1, -(2**63)) if ad_id not in known]
    assert len(unknown) >= OF_EACH
    for ad_id in unknown:
        explained = explainer.explain(ad_id, request)
        assert explained.outcome == Outcome.OUTCOME_NOT_IN_CATALOGUE
        assert explained.text.startswith(f"snapshot 1 does not have ad {ad_id}: publish a build")
        assert not explained.sid
        assert not explained.steps


def test_a_prefix_that_is_masked_by_mistake_is_reported_as_a_fault(tmp_path: Path) -> None:
    """The row of one prefix of the ad's SID gets no bits: nobody with an attribute passes it."""
    with explaining(tmp_path, MatcherMode.UNION) as explainer:
        scene = explainer.scene
    rng, pair, index, seen = np.random.default_rng(4), scene.pair, scene.pair.index, 0
    outcomes = (Outcome.OUTCOME_MAX_ADS, Outcome.OUTCOME_RETURNED)
    assert index.bitmask_index is not None
    assert index.bitmask_table is not None
    table = torch.cat([index.bitmask_table, torch.zeros_like(index.bitmask_table[:1])])
    for number in range(USERS):
        request = scene.request(rng, number) | {"profile": "full"}
        plain = PlainRequest(scene, request)
        ads = (ad for ad in scene.case.ads if plain.outcome(ad) in outcomes)
        for ad in islice(ads, 2):
            length = int(rng.integers(1, 4))
            rows = index.bitmask_index.clone()
            rows[pair.snapshot.trie.walk(ad.sid[:length]) - 1] = len(table) - 1
            masked = replace(index, bitmask_index=rows, bitmask_table=table)
            batch = replace(scene, pair=replace(pair, index=masked)).batch(read(request))
            explained = explain_ad(ad.ad_id, batch, STAGES, lambda levels: {}, nothing)
            assert explained.outcome == Outcome.OUTCOME_MASKED
            assert [step.admitted for step in explained.steps] == [True] * (length - 1) + [False]
            prefix = " ".join(map(str, ad.sid[:length]))
            assert explained.text.startswith(
                f"step {length} of 3 does not admit its prefix {prefix}, although the user may see"
            )
            seen += 1
    assert seen >= OF_EACH


def test_an_update_during_the_search_is_no_fault(explainer: Explainer) -> None:
    """Both a stop and a resume may come between two looks at the updates."""
    request = explainer.scene.request(np.random.default_rng(6), 1) | {"profile": "full"}
    plain = PlainRequest(explainer.scene, request)
    for ad in plain.matched[:5]:
        for first in (True, False):
            looks = iter((first, not first))

            def stops_among(
                levels: Mapping[str, int], looks: Iterator[bool] = looks
            ) -> Mapping[str, int]:
                return {"ad": levels["ad"]} if next(looks) else {}

            batch = explainer.scene.batch(read(request))
            explained = explain_ad(ad.ad_id, batch, STAGES, stops_among, nothing)
            assert explained.outcome == Outcome.OUTCOME_STOPPED
            assert explained.text == f"an update stops it: ad {ad.ad_id}"


def test_an_ad_resumed_after_the_masks_were_made_is_still_explained(explainer: Explainer) -> None:
    """The input stage makes the masks; the search then misses an ad that no update stops."""
    request = explainer.scene.request(np.random.default_rng(6), 1) | {"profile": "full"}
    for ad in PlainRequest(explainer.scene, request).matched[:5]:
        of_ad = {"ad": [ad.ad_id]}

        def resumed(batch: RequestBatch, of_ad: Levels = of_ad) -> InputBatch:
            made = STAGES.input(batch)
            explainer.update(resume=of_ad)
            return made

        explainer.update(stop=of_ad)
        explained = explainer.explain(ad.ad_id, read(request), replace(STAGES, input=resumed))
        assert explained.outcome == Outcome.OUTCOME_STOPPED
        assert explainer.explain(ad.ad_id, read(request)).outcome != Outcome.OUTCOME_STOPPED


def test_the_fast_engine_explains_like_the_definition(explainer: Explainer) -> None:
    pair, model = explainer.scene.pair, explainer.scene.model
    fast = replace(
        pair.model,
        features=FastStage(model, torch.float32),
        generation=FastGeneration(
            model, load_ops(torch.device("cpu")), EngineSettings("fp32", 1 << 22)
        ),
    )
    check_engine(replace(explainer.scene, pair=replace(pair, model=fast)))


def check_engine(scene: Scene) -> None:
    rng = np.random.default_rng(9)
    for number in range(9):
        request = scene.request(rng, number)
        plain = PlainRequest(scene, request)
        for ad in scene.case.ads[number::111]:
            batch = scene.batch(read(request))
            stops = named(ad, scene.stopped)
            explained = explain_ad(ad.ad_id, batch, STAGES, partial(always, stops), nothing)
            plain.assert_explained(ad, explained)


@pytest.mark.gpu
def test_a_gpu_explains_like_the_definition_and_then_generates_as_before(tmp_path: Path) -> None:
    scene = Scene.make(tmp_path, MatcherMode.UNION, USERS, device=torch.device("cuda:0"))
    ads = scene.pair.snapshot.ads
    stopped = [ad.ad_id for ad in scene.case.ads if named(ad, scene.stopped)]
    scene.pair.live.view = LiveView(ads.bitmap_of(ads.ordinals(stopped)))

    def generated() -> GeneratedBatch:
        batch = scene.batch(read(scene.request(np.random.default_rng(1), 1)))
        found = STAGES.generate(STAGES.features(STAGES.input(batch)))
        torch.cuda.synchronize()
        return found

    before = generated()
    check_engine(scene)
    after = generated()
    assert torch.equal(before.leaves, after.leaves)
    assert torch.equal(before.scores, after.scores)
