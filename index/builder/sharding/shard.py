"""One shard of a build: the ads of a range of first tokens, as a snapshot of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import arrange
from grace.index.builder.build import BuildSpec, matchers_of
from grace.index.builder.collect import CollectedAds
from grace.index.builder.peak import peak_memory
from grace.index.builder.rule_table import RawRules, RawSetRules
from grace.index.builder.sharding.join_rules import JoinedRules, join_rules, set_rule_spans
from grace.index.builder.sharding.runs import RunAds, RunSlice, load_run
from grace.index.builder.sharding.stored_arrays import OutputFolder
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.writer import write_unsynced
from grace.index.targeting.schema import TargetingSchema

__all__ = ["BuiltShard", "ShardTask", "build_shard", "first_token_ranges"]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """repeated int64 [...]: ids of which no ad is built"""

    spec: BuildSpec
    schema: TargetingSchema
    facts: SnapshotFacts
    vocab_sizes: tuple[int, ...]
    runs: tuple[RunSlice, ...]
    first_token: int
    end_token: int
    repeated: npt.NDArray[np.int64]
    scratch: Path

    def __str__(self) -> str:
        return f"building the shard of first tokens {self.first_token} to {self.end_token - 1}"


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """root: a snapshot root with one version; None where no ad was left."""

    root: Path | None
    level_counts: tuple[int, ...]  # nodes, from the root's level on; none without a snapshot
    peak_memory_bytes: int


def first_token_ranges(token_ads: npt.NDArray[np.int64], shards: int) -> list[tuple[int, int]]:
    """At most so many ranges of about as many ads each; one token's ads stay together."""
    until = np.cumsum(token_ads)
    wanted = until[-1] * np.arange(1, shards) / shards
    # Each border goes behind the token whose end is nearest to it.
    after = np.searchsorted(until, wanted)
    before = np.where(after > 0, until[after - 1], 0)
    borders = after + (until[after] - wanted <= wanted - before)
    cuts = np.unique(np.concatenate([[0], borders, [len(token_ads)]])).tolist()
    return [(begin, end) for begin, end in pairwise(cuts) if token_ads[begin:end].any()]


def build_shard(task: ShardTask) -> BuiltShard:
    root = Path(mkdtemp(prefix=f"shard-{task.first_token:05d}-", dir=task.scratch))
    collected = _collected(task, root)
    if len(collected.ad_ids) == 0:
        return BuiltShard(None, (), peak_memory())
    arranged = arrange(collected, task.vocab_sizes, task.spec.threads)
    del collected
    snapshot = Snapshot(
        task.facts,
        task.schema,
        arranged.trie,
        task.spec.mode,
        matchers_of(arranged, task.schema, task.spec, lambda done: None),
        arranged.ads,
        arranged.rules,
        arranged.set_values,
    )
    write_unsynced(snapshot, root)
    return BuiltShard(root, arranged.trie.level_counts, peak_memory())


def _collected(task: ShardTask, root: Path) -> CollectedAds:
    """The shard's ads of all runs, their rules once each."""
    parts = [load_run(run, task.repeated, len(task.schema.sets)) for run in task.runs]
    with OutputFolder(root / "rules") as out:
        joined = join_rules([part.rules for part in parts], out)
    return CollectedAds(
        np.concatenate([part.ad_ids for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.weights for part in parts]),
        _joined_rule_of(parts, joined),
        _raw_rules(joined),
        tuple(list(values.strings) for values in joined.set_values),
    )


def _joined_rule_of(parts: Sequence[RunAds], joined: JoinedRules) -> npt.NDArray[np.int32]:
    return np.concatenate(
        [new_of[part.rule] for part, new_of in zip(parts, joined.new_of, strict=True)]
    )


def _raw_rules(joined: JoinedRules) -> RawRules:
    rules = joined.rules
    return RawRules(
        np.column_stack([rules.bitmask, rules.set_rules]),
        rules.bitmask_table,
        tuple(RawSetRules(*set_rule_spans(of_set)) for of_set in rules.sets),
    )
