"""Measure every way to decode over the `paper` catalogue, over one with shuffled rules, and with
flights and filters that block a share of all ads.

Rows, by "table": `catalogue` (one), `matchers` (per mode, kind and position), `exact` (one, what
mode `exact` has in place of matchers), `pass` (per catalogue, mode and bucket of generated ads),
`selectivity` (per catalogue, mode and range of the share of all ads that a user may see), `passing`
(per catalogue with flights and filters, the share of ads that pass). Knobs are calibrated for
mode `cd` alone (docs/eligibility-calibration.md): nothing is fitted to another mode.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from grace.bench.eligibility import audience
from grace.bench.eligibility.blocking import PASSING, asking, passing_pct, with_flights_and_filters
from grace.bench.eligibility.outcomes import Counting, Outcome, bucket_rows, range_rows
from grace.bench.eligibility.path_scores import GeneratorKnobs, PathScores
from grace.bench.eligibility.search import best_possible, search
from grace.bench.gpu.subjects.catalogue import SEED
from grace.bench.gpu.subjects.workload import Workload
from grace.bench.result_file import Row
from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.draws import Draws
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PaperSpec
from grace.configs.eligibility import EXACT, Eligibility, MatcherMode
from grace.configs.machine import available_cores
from grace.index.matchers.derive import derive
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.summary import IndexSummary, summarize
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import DecodeIndex

PAPER, SHUFFLED = "paper", "shuffled"

_GENERATOR_SEED = 7
_SHUFFLE_SEED = 13


@dataclass(slots=True)
class _Way:
    """One catalogue decoded in one mode, and what users got so far."""

    index: DecodeIndex
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the catalogues, and the ways to decode it that are asked for."""

    name: str
    counting: Counting
    ways: dict[MatcherMode, _Way]
    encoder: UserEncoder

    def rows_of(self, people: Sequence[audience.Person]) -> UserRows:
        users = [person.attributes for person in people]
        if self.name in PASSING:
            return self.encoder.encode([asking(user, self.name) for user in users])
        return self.encoder.encode(users)


def measure(work: Workload) -> Iterator[Row]:
    threads = available_cores()
    spec = PaperSpec(work.sids, SEED)
    catalogue = audience.with_many_locations(make_paper_catalogue(spec, threads))
    facts = paper_snapshot(catalogue, threads)
    sides: dict[str, _Side] = {}
    for name, modes in _asked(work.options.parts()).items():
        own = _facts_of(name, facts)
        exact = derive(own, EXACT, threads)
        if not sides:
            yield _catalogue_row(spec, summarize(exact))
        if name in PASSING:
            yield {"table": "passing", "catalogue": name, "ads_pct": passing_pct(own, name)}
        counting = Counting(exact, work.device, work.load_ops(work.device))
        encoder = UserEncoder(exact.schema, exact.set_values)
        sides[name] = _Side(name, counting, {}, encoder)
        for mode in modes:
            snapshot = derive(own, Eligibility.of(mode), threads)
            if name == PAPER:
                yield from _index_rows(summarize(snapshot))
            sides[name].ways[mode] = _Way(DecodeIndex.of(snapshot, work.device))
            del snapshot  # k-way matchers are gigabytes: before the next mode's are made
    people = _audience(catalogue, facts, work)
    _serve(people, sides, work)
    for name, side in sides.items():
        for mode, way in side.ways.items():
            yield from _rows(name, mode, Outcome.joined(way.outcomes), people)


def _asked(parts: Sequence[str]) -> dict[str, list[MatcherMode]]:
    """Return the modes of each catalogue: a part is `union`, or `shuffled:union`."""
    asked: dict[str, list[MatcherMode]] = {}
    for part in parts:
        name, _, mode = part.rpartition(":")
        asked.setdefault(name or PAPER, []).append(MatcherMode(mode))
    return asked


def _facts_of(name: str, facts: Snapshot) -> Snapshot:
    if name in PASSING:
        return with_flights_and_filters(facts)
    return _with_shuffled_rules(facts) if name == SHUFFLED else facts


def _audience(catalogue: PaperCatalogue, facts: Snapshot, work: Workload) -> list[audience.Person]:
    encoder = UserEncoder(facts.schema, facts.set_values)
    matcher = ExactMatcher(facts, available_cores())
    return audience.make_audience(work.users, catalogue, encoder, matcher, facts.trie.num_leaves)


def _serve(people: Sequence[audience.Person], sides: dict[str, _Side], work: Workload) -> None:
    """Answer all users in every way, batch by batch."""
    snapshot = next(iter(sides.values())).counting.snapshot
    draws, first_leaf = Draws(_GENERATOR_SEED), snapshot.trie.first_leaf
    path_scores = PathScores(snapshot, draws, GeneratorKnobs(), work.device)
    admit_children = work.load_ops(work.device).admit_children
    for begin in range(0, len(people), audience.AT_ONCE):
        batch = people[begin : begin + audience.AT_ONCE]
        scores = torch.stack([path_scores.of(person.number) for person in batch])
        for side in sides.values():
            counting, users = side.counting, side.rows_of(batch)
            asked, eligible = counting.asking(users)
            best = counting.best(best_possible(scores, eligible, first_leaf), users)
            for way in side.ways.values():
                found = search(scores, asked, way.index, admit_children)
                way.outcomes.append(counting.outcome(found, users, eligible, best))


def _with_shuffled_rules(facts: Snapshot) -> Snapshot:
    """Give each ad another ad's rule, so that rules do not follow the SIDs."""
    shuffled = np.random.default_rng(_SHUFFLE_SEED).permutation(facts.ads.ad_rule)
    return replace(facts, ads=replace(facts.ads, ad_rule=shuffled))


def _rows(
    name: str, mode: MatcherMode, outcome: Outcome, people: Sequence[audience.Person]
) -> Iterator[Row]:
    place = {"catalogue": name, "mode": mode.value}
    shares = np.array([person.share for person in people])
    in_sweep = np.array([person.in_sweep for person in people])
    for group, of, ranges in (
        ("population", ~in_sweep, audience.POPULATION_RANGES),
        ("sweep", in_sweep, audience.SWEEP_RANGES),
    ):
        own = Outcome(*(counts[of] for counts in outcome))
        if group == "population":
            for row in bucket_rows(own):
                yield {"table": "pass", **place, **row}
        if name in PASSING:
            continue
        for row in range_rows(own, shares[of], ranges):
            yield {"table": "selectivity", **place, "audience": group, **row}


def _catalogue_row(spec: PaperSpec, summary: IndexSummary) -> Row:
    return {
        "table": "catalogue",
        "sid_space": spec.sid_space,
        "sids": summary.sids,
        "ads": summary.ads,
        "ads_per_sid": summary.ads_per_sid,
        "levels": [asdict(level) for level in summary.levels],
        "rules": summary.rules,
        "knobs": asdict(spec.knobs),
        "generator": asdict(GeneratorKnobs()),
    }


def _index_rows(summary: IndexSummary) -> Iterator[Row]:
    for matcher in summary.matchers:
        row = {"table": "matchers", "mode": summary.mode, **asdict(matcher)}
        yield row | {"fill": round(matcher.fill, 4)}
    if summary.exact is not None:
        yield {"table": "exact", "mode": summary.mode, **asdict(summary.exact)}
