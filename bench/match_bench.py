"""Measures expanding SIDs and exact matching: 16 requests of 10,000 ads, users with 64 locations.

    python -m grace.bench.match_bench --out bench/results/cpu-2core/match.json

Every leaf has an ad that the user may see, as the leaves of a beam search do. Every repetition
draws new leaves, so that the index is read from memory rather than from a warm cache.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from grace.bench.result_file import Row, facts_of, record
from grace.catalogues.synth import preset_spec, write_folder
from grace.index.builder import BuildSpec, build
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows

REQUESTS = 16
GENERATED = 10_000
LOCATIONS = 64
SEED = 1
MAX_ADS = (500, GENERATED)  # the API's usual reply, and all that matched
SAMPLED_LEAVES = 300_000  # the sample in which a user's eligible leaves are searched

Leaves = npt.NDArray[np.int32]


class Draw(NamedTuple):
    """The leaves of one call of ExactMatcher.match."""

    offsets: npt.NDArray[np.int64]
    leaves: Leaves
    scores: npt.NDArray[np.float32]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.match_bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, default=3_000_000)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args(arguments)
    record(_rows(options), options.out, facts_of(parser.prog, arguments))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    rng = np.random.default_rng(SEED)
    with tempfile.TemporaryDirectory() as folder:
        snapshot, attributes = _catalogue(Path(folder), options.sids, rng)
    users = UserEncoder(snapshot.schema, snapshot.set_values).encode(attributes)
    pools = _pools(snapshot, users, rng)
    draws = [_draw(snapshot, pools, rng) for _ in range(options.repetitions)]
    for max_ads in MAX_ADS:
        yield _measure(snapshot, users, draws, max_ads)


def _measure(snapshot: Snapshot, users: UserRows, draws: list[Draw], max_ads: int) -> Row:
    """Measure whole calls, including checks and the allocation of the reply.

    Generated, matched and returned ads are per request.
    """
    matcher = ExactMatcher(snapshot, threads=1)
    seconds, counts = [], np.zeros(3)
    for draw in draws:
        begin = time.perf_counter()
        reply = matcher.match(users, *draw, max_ads)
        seconds.append(time.perf_counter() - begin)
        own = reply.counts
        counts += [own.generated.sum(), own.matched.sum(), own.returned.sum()]
    median, p90 = (float(np.quantile(seconds, q)) for q in (0.5, 0.9))
    generated, matched, returned = (counts / (len(draws) * len(users))).round().astype(int).tolist()
    return {
        "sids": snapshot.trie.num_leaves,
        "ads": snapshot.ads.num_ads,
        "rules": snapshot.rules.num_rules,
        "threads": 1,
        "max_ads": max_ads,
        "requests": len(users),
        "generated": generated,
        "matched": matched,
        "returned": returned,
        "repetitions": len(draws),
        "median_ms": round(median * 1e3, 2),
        "p90_ms": round(p90 * 1e3, 2),
        "ns_per_ad": round(median * 1e9 * len(draws) / float(counts[0]), 1),
    }


def _draw(snapshot: Snapshot, pools: list[Leaves], rng: np.random.Generator) -> Draw:
    """Leaves of about GENERATED ads per request, best score first."""
    sizes = np.diff(snapshot.ads.ad_offsets)
    requests = []
    for pool in pools:
        turn = np.roll(pool, int(rng.integers(len(pool))))[: 2 * GENERATED]
        requests.append(turn[: 1 + int(np.searchsorted(sizes[turn].cumsum(), GENERATED))])
    scores = [np.sort(rng.normal(size=len(leaves)))[::-1] for leaves in requests]
    return Draw(
        np.cumsum([0, *(len(leaves) for leaves in requests)], dtype=np.int64),
        np.concatenate(requests),
        np.concatenate(scores).astype(np.float32),
    )


def _pools(snapshot: Snapshot, users: UserRows, rng: np.random.Generator) -> list[Leaves]:
    """Return random leaves for each user, each with an ad that the user may see."""
    count = min(SAMPLED_LEAVES, snapshot.trie.num_leaves)
    samples = [
        rng.permutation(snapshot.trie.num_leaves)[:count].astype(np.int32)
        for _ in range(len(users))
    ]
    reply = ExactMatcher(snapshot, threads=1).match(
        users,
        np.arange(len(users) + 1) * count,
        np.concatenate(samples),
        np.zeros(len(users) * count, np.float32),
        snapshot.ads.num_ads,
    )
    return [
        rng.permutation(sample[np.unique(reply.leaf_positions[begin:end])])
        for sample, begin, end in zip(samples, reply.offsets[:-1], reply.offsets[1:], strict=True)
    ]


def _catalogue(
    folder: Path, sids: int, rng: np.random.Generator
) -> tuple[Snapshot, list[UserAttributes]]:
    """A built catalogue, and users of it, each with LOCATIONS locations that occur in its rules."""
    ads = folder / "ads"
    spec = preset_spec("small", sids=sids, seed=SEED)
    write_folder(spec, ads, force=False, progress=lambda done, total: None)
    report = build(BuildSpec(read_data_folder(ads), folder / "root"), lambda *_: None)
    snapshot = load_snapshot(report.path)
    places = snapshot.set_values[[s.name for s in snapshot.schema.sets].index("location")]
    users: list[UserAttributes] = []
    for line in (ads / "requests.jsonl").read_text(encoding="utf-8").splitlines():
        user = {name: value["values"] for name, value in json.loads(line)["user"].items()}
        own = list(user.get("location", ()))
        if own and len(users) < REQUESTS:
            visited = (places[int(i)] for i in rng.permutation(len(places))[:LOCATIONS])
            user["location"] = list(dict.fromkeys([*own, *visited]))[:LOCATIONS]
            users.append(user)
    return snapshot, users


if __name__ == "__main__":
    main(sys.argv[1:])
