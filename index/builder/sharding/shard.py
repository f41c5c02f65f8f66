"""One shard of a build: the ads of a range of first tokens, as a snapshot."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import arrange
from grace.index.builder.collect import CollectedAds
from grace.index.builder.report import peak_memory
from grace.index.builder.sharding.join_rules import join_rules
from grace.index.builder.sharding.output_folder import OutputFolder
from grace.index.builder.sharding.runs import Run, TaskInputs, load_ads
from grace.index.snapshot import SnapshotFacts
from grace.index.storage.writer import write_unsynced


@dataclass(frozen=True, slots=True)
class ShardTask:
    """repeated int64 [...]: ids of which no ad is built"""

    inputs: TaskInputs
    facts: SnapshotFacts
    runs: tuple[Run, ...]
    first_token: int
    end_token: int
    repeated: npt.NDArray[np.int64]

    def __str__(self) -> str:
        return f"building the shard of first tokens {self.first_token} to {self.end_token - 1}"


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """root: a snapshot root with one version; None where no ad was left."""

    root: Path | None
    peak_memory_bytes: int


def first_token_ranges(token_ads: npt.NDArray[np.int64], shards: int) -> list[tuple[int, int]]:
    """Return at most `shards` ranges of about equally many ads; one token's ads stay together."""
    until = np.cumsum(token_ads)
    wanted = until[-1] * np.arange(1, shards) / shards
    # Each border follows the token whose end is nearest to it.
    after = np.searchsorted(until, wanted)
    before = np.where(after > 0, until[after - 1], 0)
    borders = after + (until[after] - wanted <= wanted - before)
    cuts = np.unique(np.concatenate([[0], borders, [len(token_ads)]])).tolist()
    return [(begin, end) for begin, end in pairwise(cuts) if token_ads[begin:end].any()]


def build_shard(task: ShardTask) -> BuiltShard:
    inputs = task.inputs
    root = Path(mkdtemp(prefix=f"shard-{task.first_token:05d}-", dir=inputs.scratch))
    collected = _collected(task, root)
    if len(collected.ad_ids) == 0:
        return BuiltShard(None, peak_memory())
    vocab_sizes = inputs.vocab_sizes
    snapshot = arrange(collected, task.facts, inputs.schema, vocab_sizes, inputs.spec.threads)
    write_unsynced(snapshot, root)
    return BuiltShard(root, peak_memory())


def _collected(task: ShardTask, root: Path) -> CollectedAds:
    """Return the shard's ads of all runs, with each rule once."""
    first, end, schema = task.first_token, task.end_token, task.inputs.schema
    runs = [run for run in task.runs if run.token_ads()[first:end].any()]
    parts = [load_ads(run, first, end, task.repeated, schema) for run in runs]
    with OutputFolder(root / "rules") as out:
        joined = join_rules([(part.rules, part.set_values) for part in parts], out)
    ads = [
        (part.ad_ids, part.tokens, part.weights, new_of[part.rule_of], *part.entity_ids)
        for part, new_of in zip(parts, joined.new_of, strict=True)
    ]
    ad_ids, tokens, weights, rule_of, *entity_ids = map(np.concatenate, zip(*ads, strict=True))
    set_values = tuple(values.strings for values in joined.set_values)
    return CollectedAds(
        ad_ids, tokens, weights, rule_of, tuple(entity_ids), joined.rules, set_values
    )
