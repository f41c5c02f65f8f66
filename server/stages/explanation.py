"""Why an ad is, or is not, in the reply to a request: the same stages once more, with a trace.

An ad passes these tests in turn, and the first that it fails is the outcome: it is in the snapshot,
no update stops it, its rules allow the user, the search keeps every prefix of its SID, the request
does not exclude it, and `at_most` and `max_ads` leave room for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from math import inf

import numpy as np

from grace.configs.arrays import Int64
from grace.index.forms.component import some
from grace.index.forms.components import explain, unknown_values
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import AD_LEVEL
from grace.index.trie import NO_NODE
from grace.index.updates.live_ads import levels_of
from grace.model.engine.search_trace import SearchTrace, TracedStep
from grace.proto import retrieval_pb2 as wire
from grace.server.errors import internal
from grace.server.messages import InputBatch, PendingRequest, RequestBatch, Retrieval
from grace.server.stages.replies import Leaves
from grace.server.stages.stages import Stages, generate_sids, held_ads

Outcome = wire.ExplainResponse.Outcome
StopsAmong = Callable[[Mapping[str, int]], Mapping[str, int]]
"""A function that returns which of these ids, by level, updates stop now."""


def explain_ad(
    ad_id: int,
    batch: RequestBatch,
    stages: Stages,
    stops_among: StopsAmong,
    require_wanted: Callable[[], None],
) -> wire.ExplainResponse:
    """Explain an ad for the only request of a batch. Raise the ServiceError of a wrong request.

    It calls `require_wanted`, which raises if no caller waits any more, before each long part.
    """
    snapshot = batch.pair.snapshot
    (ordinal,) = snapshot.ads.ordinals([ad_id]).tolist()
    levels = levels_of(snapshot, ordinal) if ordinal >= 0 else {}
    # An update may come meanwhile, so the stops before and after the search both count. The input
    # stage makes the masks that the search reads, so the search begins there.
    stops = stops_among(levels)
    prepared = stages.input(batch)
    try:
        for failure in prepared.failures:
            raise failure.error
        reply = wire.ExplainResponse(
            ad_id=ad_id,
            snapshot_version=snapshot.facts.version,
            checkpoint=batch.pair.checkpoint,
            profile=batch.profile_name,
            ignored_names=prepared.ignored[0],
        )
        if ordinal < 0:
            reply.outcome = Outcome.OUTCOME_NOT_IN_CATALOGUE
            fault = f"snapshot {reply.snapshot_version} does not have ad {ad_id}"
            remedy = "publish a build whose table has it and that does not reject it"
            if ad_id in batch.pair.shown.removed:
                remedy = "an update has removed it; to serve it again, put it"
            reply.text = f"{fault}: {remedy}"
            return reply
        explained = _Explained(ordinal, levels, prepared, reply)
        steps = explained.search(stages, require_wanted)
        explained.conclude(steps, {**stops, **stops_among(levels)})
        return reply
    finally:
        for staging in prepared.staged:
            staging.finish()


class _Explained:
    """The explanation of an ad of the snapshot: its methods fill in the reply."""

    def __init__(
        self,
        ordinal: int,
        levels: Mapping[str, int],
        prepared: InputBatch,
        reply: wire.ExplainResponse,
    ) -> None:
        self._prepared, self._reply = prepared, reply
        self._snapshot: Snapshot = prepared.batch.pair.snapshot
        self._retrieval: Retrieval = prepared.requests[0].retrieval
        self._ordinal = ordinal
        self._levels = levels
        self._leaf = int(np.searchsorted(self._snapshot.ads.ad_offsets, ordinal, side="right")) - 1
        reply.sid[:] = self._snapshot.trie.sids(np.array([self._leaf]))[0].tolist()
        request = wire.RetrieveRequest.FromString(self._retrieval.message)
        request.at = request.at or prepared.at
        rule = int(self._snapshot.ads.ad_rule[ordinal])
        self._reasons = explain(self._snapshot, rule, request)
        self._alternatives = len(self._snapshot.rules.rules_of(rule))
        self._unknown = some(unknown_values(self._snapshot, request))

    def search(self, stages: Stages, require_wanted: Callable[[], None]) -> list[TracedStep]:
        for reason in self._reasons:
            self._reply.rules.add(**asdict(reason))
        # A request may give `exclude` the name of the level of ads, which no entity has.
        excluded = {**self._retrieval.exclude, AD_LEVEL: self._retrieval.exclude_ads}
        named = {name: own for name, own in self._levels.items() if own in excluded.get(name, ())}
        self._reply.excluded_by.extend(_level_ids(named))
        require_wanted()
        features = stages.features(self._prepared)
        require_wanted()
        trace = SearchTrace(self._snapshot.trie.path(self._leaf))
        generated = generate_sids(features, trace)
        if generated.corrupt[0]:
            raise internal("not_finite")
        for token, step in zip(self._reply.sid, trace.steps, strict=False):
            self._reply.steps.add(token=token, admitted=step.admitted, **asdict(step))
        kept = trace.steps[-1].kept
        if kept:
            self._reply.score = float(trace.steps[-1].score or 0.0)
            require_wanted()
            self._add_rank(Leaves(generated.leaves.numpy(), generated.scores.numpy()))
        return trace.steps

    def _add_rank(self, leaves: Leaves) -> None:
        """Rank the ad among the matched ads without `max_ads`, and find what limits it."""
        retrieval, reply = self._retrieval, self._reply
        matched = self._matched(leaves, replace(retrieval, at_most={}))
        if reply.ad_id not in matched:
            return
        left = self._matched(leaves, retrieval) if retrieval.at_most else matched
        reply.ranked_ads = len(left)
        place = np.flatnonzero(left == reply.ad_id)
        if len(place):
            reply.rank = int(place[0]) + 1
            return
        before = matched[: int(np.flatnonzero(matched == reply.ad_id)[0])]
        better = self._snapshot.ads.ordinals(before[np.isin(before, left)])
        for entities in self._snapshot.entities:
            own = entities.of_ad[self._ordinal]
            most = retrieval.at_most.get(entities.name)
            if most is None or entities.name not in self._levels:
                continue
            if (entities.of_ad[better] == own).sum() >= most:
                reply.limited_by.level = entities.name
                reply.limited_by.id = self._levels[entities.name]
                return

    def _matched(self, leaves: Leaves, retrieval: Retrieval) -> Int64:
        """Return the ads that the request would get if `max_ads` did not cut them, best first."""
        whole = replace(retrieval, max_ads=self._snapshot.ads.num_ads)
        batch = replace(self._prepared, requests=(PendingRequest(whole, 0.0, inf),))
        of_request = np.full_like(leaves.leaves, NO_NODE)
        of_request[0] = leaves.leaves[0]
        with held_ads(batch, Leaves(of_request, leaves.scores)) as ads:
            taken = ads.taken()
        return taken.ad_ids[: int(taken.offsets[1])]

    def conclude(self, steps: list[TracedStep], stops: Mapping[str, int]) -> None:
        """Name the first test that the ad failed."""
        reply, retrieval = self._reply, self._retrieval
        reply.stops.extend(_level_ids(stops))
        failed = [
            f"{reason.name} {reason.allows} (user: {reason.values})"
            for reason in self._reasons
            if not reason.passes
        ]
        last = steps[-1]
        if reply.stops:
            reply.outcome = Outcome.OUTCOME_STOPPED
            reply.text = f"an update stops it: {_listed(reply.stops)}"
        elif failed:
            reply.outcome = Outcome.OUTCOME_NOT_ELIGIBLE
            reply.text = f"its rules do not allow this user: {'; '.join(failed)}"
            if self._alternatives > 1:
                reply.text += f" (the nearest of {self._alternatives} alternatives)"
        elif not last.kept:
            reply.outcome = Outcome.OUTCOME_OUT_OF_BEAM if last.admitted else Outcome.OUTCOME_MASKED
            reply.text = f"step {len(steps)} of {len(reply.sid)} {self._lost(last)}"
        elif reply.excluded_by:
            reply.outcome = Outcome.OUTCOME_EXCLUDED
            reply.text = f"the request excludes it: {_listed(reply.excluded_by)}"
        elif reply.HasField("limited_by"):
            reply.outcome = Outcome.OUTCOME_AT_MOST
            most = retrieval.at_most[reply.limited_by.level]
            limit = f"at_most allows {most} of {_listed([reply.limited_by])}"
            reply.text = f"{limit}, and the reply has as many better ones"
        elif reply.rank > retrieval.max_ads:
            reply.outcome = Outcome.OUTCOME_MAX_ADS
            place = f"number {reply.rank} of {reply.ranked_ads} ads"
            reply.text = f"it is {place}, and max_ads is {retrieval.max_ads}"
        elif reply.rank:
            reply.outcome = Outcome.OUTCOME_RETURNED
            place = f"number {reply.rank} of {min(reply.ranked_ads, retrieval.max_ads)} ads"
            reply.text = f"it is returned: {place}, with score {reply.score:.6g}"
        else:
            # Perhaps an update of better ads came between two matches, which is rare.
            raise RuntimeError("matching left out an ad that passes every test")
        if self._unknown:
            reply.text += f"; no ad has these filter values: {self._unknown}"

    def _lost(self, step: TracedStep) -> str:
        prefix = " ".join(str(each.token) for each in self._reply.steps)
        if step.score is None:
            fault = f"does not admit its prefix {prefix}, although the user may see the ad"
            return f"{fault}: a fault of the server; run grace verify, and report it"
        place = f"score {step.score:.6g}, number {step.rank} of {step.candidates} candidates"
        kept = "no beam was kept"
        if step.lowest_score is not None:
            kept = f"{step.beams} beams were kept, down to score {step.lowest_score:.6g}"
        return f"dropped its prefix {prefix}: {place}; {kept}"


def _level_ids(levels: Mapping[str, int]) -> list[wire.LevelId]:
    return [wire.LevelId(level=level, id=given) for level, given in levels.items()]


def _listed(ids: Iterable[wire.LevelId]) -> str:
    return ", ".join(f"{each.level} {each.id}" for each in ids)
