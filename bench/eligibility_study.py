"""Pass rates, fill rates and storage of the matcher modes over the `paper` catalogue.

    python -m grace.bench.eligibility_study --sids 30000000 --users 512 \
        --out bench/results/cpu-2core/eligibility.json

Every mode serves the same users with the same generator and beams, and differs only in what a step
admits. The generated ads are then matched exactly. Rates are of all ads of a bucket's users
together; the buckets are the paper's, by generated ads per user. Rows, by "table": `catalogue`
(one), `matchers` (per mode, kind and position), `pass` (per mode and bucket).
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grace.bench.result_file import Row, facts_of, record
from grace.catalogues.paper.catalogue import make_paper_catalogue
from grace.catalogues.paper.draws import Draws
from grace.catalogues.paper.generator import (
    Generator,
    GeneratorKnobs,
    admit_for,
    every_entry,
    generator_of,
)
from grace.catalogues.paper.population import make_users
from grace.catalogues.paper.snapshots import arranged_ads, snapshot_of
from grace.catalogues.paper.spec import PaperSpec
from grace.configs.machine import available_cores
from grace.index.matchers.modes import KWay, MatcherMode, StaticKWay
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.summary import IndexSummary, summarize
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows

_USERS_AT_ONCE = 64
_BUCKETS = (
    ("all", 0, 1 << 62),
    ("<5k", 0, 5_000),
    ("5k-9.9k", 5_000, 10_000),
    ("10k+", 10_000, 1 << 62),
)
_GENERATOR_SEED = 7

_K_WAYS: dict[MatcherMode, KWay] = {MatcherMode.STATIC: StaticKWay((64, 64, 32, 8))}
"""The paper's numbers of partitions; the builder's defaults for `dynamic` are the paper's, too."""

Counts = npt.NDArray[np.int64]


class Outcome(NamedTuple):
    """The counts of one mode, for each user; beams are [users, steps]."""

    generated: Counts
    attributes: Counts  # failed the bitmask
    sets: Counts  # passed it, and failed a set
    matched: Counts
    beams: Counts
    empty_sids: Counts


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.eligibility_study", description=__doc__
    )
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, default=30_000_000)
    parser.add_argument("--users", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    spec = PaperSpec(options.sids, options.seed)
    rows = _study(spec, options.users)
    record(rows, options.out, facts_of("python -m grace.bench.eligibility_study", arguments))


def _study(spec: PaperSpec, num_users: int) -> Iterator[Row]:
    threads = available_cores()
    begin = time.perf_counter()
    catalogue = make_paper_catalogue(spec, threads)
    arranged = arranged_ads(catalogue, threads)
    seconds = time.perf_counter() - begin
    users: list[UserAttributes] = list(make_users(num_users, catalogue.draws, spec.knobs))
    generator = None
    for place, mode in enumerate(MatcherMode):
        begin = time.perf_counter()
        snapshot = snapshot_of(catalogue, arranged, mode, threads, _K_WAYS.get(mode))
        joined = time.perf_counter() - begin
        summary = summarize(snapshot)
        if place == 0:
            yield _catalogue_row(spec, summary, seconds)
        yield from _matcher_rows(summary, joined)
        if generator is None:
            generator = generator_of(snapshot, Draws(_GENERATOR_SEED), GeneratorKnobs())
        outcome = _answer(snapshot, users, generator, threads)
        yield from _pass_rows(mode, outcome)
        del snapshot  # k-way matchers are gigabytes: before the next mode's are made


def _answer(
    snapshot: Snapshot, users: Sequence[UserAttributes], generator: Generator, threads: int
) -> Outcome:
    encoder = UserEncoder(snapshot.schema, snapshot.set_values)
    matcher = ExactMatcher(snapshot, threads)
    parts = []
    for first in range(0, len(users), _USERS_AT_ONCE):
        encoded = encoder.encode(users[first : first + _USERS_AT_ONCE])
        parts.append(_answer_some(snapshot, encoded, first, generator, matcher))
    return Outcome(*(np.concatenate(counts) for counts in zip(*parts, strict=True)))


def _answer_some(
    snapshot: Snapshot, users: UserRows, first: int, generator: Generator, matcher: ExactMatcher
) -> Outcome:
    cd = snapshot.mode is MatcherMode.CD
    found = [
        generator.generate(
            first + request, every_entry if cd else admit_for(snapshot, users, request)
        )
        for request in range(len(users))
    ]
    offsets = np.cumsum([0, *(len(one.leaves) for one in found)])
    reply = matcher.match(
        users,
        offsets,
        np.concatenate([one.leaves for one in found]),
        np.concatenate([one.scores for one in found]),
        snapshot.ads.num_ads,
    )
    useful = [
        len(np.unique(reply.leaf_positions[begin:end]))
        for begin, end in zip(reply.offsets[:-1], reply.offsets[1:], strict=True)
    ]
    counts = reply.counts
    return Outcome(
        generated=counts.generated,
        attributes=counts.attributes,
        sets=counts.sets.sum(axis=1),
        matched=counts.matched,
        beams=np.array([one.alive for one in found], np.int64),
        empty_sids=np.diff(offsets) - np.array(useful, np.int64),
    )


def _pass_rows(mode: MatcherMode, outcome: Outcome) -> Iterator[Row]:
    """Yield rows whose counts are means over a bucket's users, and whose rates are over its ads."""
    for bucket, least, below in _BUCKETS:
        of = (outcome.generated >= least) & (outcome.generated < below)
        generated = int(outcome.generated[of].sum())
        passed = generated - int(outcome.attributes[of].sum())
        matched = int(outcome.matched[of].sum())
        count = max(1, int(of.sum()))
        yield {
            "table": "pass",
            "mode": mode.value,
            "bucket": bucket,
            "users": int(of.sum()),
            "users_share": round(float(of.mean()), 4),
            "generated": round(generated / count, 1),
            "generated_median": float(np.median(outcome.generated[of])) if of.any() else 0.0,
            "matched": round(matched / count, 1),
            "bitmask_pass": _share(passed, generated),
            "bloom_pass": _share(matched, passed),  # by the exact sets, not by Bloom bits
            "final_pass": _share(matched, generated),
            "beams": (outcome.beams[of].sum(axis=0) / count).round(1).tolist(),  # after each step
            "sids_without_match": round(int(outcome.empty_sids[of].sum()) / count, 1),
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _catalogue_row(spec: PaperSpec, summary: IndexSummary, seconds: float) -> Row:
    return {
        "table": "catalogue",
        "sid_space": spec.sid_space,
        "sids": summary.sids,
        "ads": summary.ads,
        "ads_per_sid": summary.ads_per_sid,
        "levels": [asdict(level) for level in summary.levels],
        "rules": summary.rules,
        "rule_bitmask_rows": summary.rule_bitmask_rows,
        "set_rules": summary.set_rules,
        "set_values": summary.set_values,
        "made_s": round(seconds, 1),
        "knobs": asdict(spec.knobs),
        "generator": asdict(GeneratorKnobs()),
    }


def _matcher_rows(summary: IndexSummary, seconds: float) -> Iterator[Row]:
    for matcher in summary.matchers:
        row = {"table": "matchers", "mode": summary.mode, **asdict(matcher)}
        yield row | {"fill": round(matcher.fill, 4), "joined_s": round(seconds, 1)}


if __name__ == "__main__":
    main(sys.argv[1:])
