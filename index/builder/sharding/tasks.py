"""The tasks of a build in shards. They share only files, so they may run on any machine.

A file of ads becomes runs of some million ads, whatever the file's size: each a small snapshot, and
its sorted ids. The ads of a range of first tokens in all runs become a shard, which is a snapshot
again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Generic, TypeVar

import numpy as np

from grace.configs.arrays import AnyArray, Int64
from grace.index.builder.arrange import arrange, only_used, taken_apart
from grace.index.builder.batches import AdColumns, AdsReading
from grace.index.builder.collect import CollectedAds, Collector, SortedIds
from grace.index.builder.item_sids import ItemSids
from grace.index.builder.plan import BuildSpec
from grace.index.builder.report import peak_memory
from grace.index.builder.sharding.merge import join_rules
from grace.index.builder.sharding.scratch import map_arrays, save_arrays
from grace.index.builder.source import AdsFile, AdsSource
from grace.index.rejects import Reject
from grace.index.snapshot import SnapshotFacts
from grace.index.storage.reader import map_snapshot
from grace.index.storage.writer import write_unsynced
from grace.index.tables.item_numbers import IdMap
from grace.index.trie import ROOT

_FACTS = SnapshotFacts(1, "2026-01-01T00:00:00Z", "run", 0, 0)
"""The facts of a run or a shard, which no server loads."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Task(Generic[Result]):
    """A call that any machine may make. Errors have its name."""

    name: str
    function: Callable[..., Result]
    arguments: tuple[object, ...]

    def run(self) -> tuple[Result, int]:
        """Return the result, and the most bytes that this process has had in memory."""
        return self.function(*self.arguments), peak_memory()


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The inputs that all tasks of a build share, on any machine."""

    spec: BuildSpec
    plain: AdsReading  # without names and SIDs, which are in files
    scratch: Path
    run_rows: int

    def reading(self) -> AdsReading:
        """Return the reading of the whole build, from files that every task sees."""
        names = {name: IdMap.read(path) for name, path in self.spec.id_maps.items()}
        sids = None if self.spec.data.sids is None else map_arrays(ItemSids, self.scratch)
        return replace(self.plain, names=names, sids=sids)

    def write(self, ads: CollectedAds, root: Path) -> None:
        schema, sizes = self.plain.schema, self.plain.vocab_sizes
        write_unsynced(arrange(ads, _FACTS, schema, sizes, self.spec.threads), root)


@dataclass(frozen=True, slots=True)
class Run:
    path: Path  # a snapshot root, if there are ads, and the sorted ids
    has_ads: bool

    def sorted_ids(self) -> SortedIds:
        """Map the ids of all rows, also of refused ones."""
        return map_arrays(SortedIds, self.path)


@dataclass(frozen=True, slots=True)
class CollectedFile:
    runs: Sequence[Run]
    token_ads: Int64  # the number of ads by first token
    rejects: Sequence[Reject]
    stated: frozenset[str]  # columns in which some row has a rule, or an entity


def collect_file(inputs: TaskInputs, file: AdsFile, first_row: int) -> CollectedFile:
    """Collect a file, `first_row` of the whole table; stop at more rejects than a build allows."""
    spec, source = inputs.spec, AdsSource((file,))
    most, rows = spec.max_rejects, inputs.run_rows
    collector = Collector(source, inputs.reading(), spec.threads, most, rows, first_row)
    runs, size = [], inputs.plain.vocab_sizes[0]
    token_ads = np.zeros(size, np.int64)
    for ads, ids in collector:
        path = Path(mkdtemp(prefix="run-", dir=inputs.scratch))
        save_arrays(ids, path)
        if len(ads):
            inputs.write(ads, path)
        runs.append(Run(path, len(ads) > 0))
        token_ads += np.bincount(ads.columns.tokens[:, 0], minlength=size)
    return CollectedFile(runs, token_ads, collector.rejects, frozenset(collector.stated))


def first_token_ranges(token_ads: Int64, shards: int) -> list[tuple[int, int]]:
    """Return at most `shards` ranges of about equally many ads; one token's ads stay together."""
    until = np.cumsum(token_ads)
    wanted = until[-1] * np.arange(1, shards) / shards
    # Each border follows the token whose end is nearest to it.
    after = np.searchsorted(until, wanted)
    before = np.where(after > 0, until[after - 1], 0)
    borders = after + (until[after] - wanted <= wanted - before)
    cuts = np.unique(np.concatenate([[0], borders, [len(token_ads)]])).tolist()
    return [(begin, end) for begin, end in pairwise(cuts) if token_ads[begin:end].any()]


def build_shard(
    inputs: TaskInputs,
    runs: Sequence[Path],
    first_tokens: tuple[int, int],  # the first of them, and the one after the last
    repeated: Int64,  # [...]: ids of which no ad is built, ascending
) -> Path | None:
    """Return a snapshot root with one version, or None if no ad is left."""
    root = Path(mkdtemp(prefix=f"shard-{first_tokens[0]:05d}-", dir=inputs.scratch))
    parts = [_part_of_run(path, first_tokens, repeated) for path in runs]
    parts = [part for part in parts if len(part)]
    if not parts:
        return None
    sources = [(part.rules, part.set_values) for part in parts]
    rules, joined, new_of = join_rules(sources, inputs.plain.schema, inputs.spec.threads)
    columns = [
        part.columns._replace(rule_of=numbers[part.columns.rule_of])
        for part, numbers in zip(parts, new_of, strict=True)
    ]
    values = tuple(values.strings for values in joined)
    del parts
    in_all = AdColumns._make(map(np.concatenate, zip(*columns, strict=True)))
    del columns
    inputs.write(CollectedAds(in_all, rules, values), root)
    return root


def _part_of_run(path: Path, first_tokens: tuple[int, int], repeated: Int64) -> CollectedAds:
    """Return the shard's ads of a run, and only the rules that they use."""
    run = map_snapshot(path, 1, lambda _: False)
    tokens, children = run.trie.children(ROOT)
    # The leaves at which the SIDs of each first token begin, and at which the last's end.
    nodes: AnyArray = np.arange(children.start, children.stop + 1)
    for _ in range(1, run.trie.sid_length):
        nodes = run.trie.node_offsets[nodes] + 1
    first_leaves = np.asarray(nodes, np.int64) - run.trie.first_leaf
    begin, end = first_leaves[np.searchsorted(tokens, first_tokens)].tolist()
    ads = taken_apart(run, begin, end).without(repeated)
    rule_of, rules, set_values = only_used(ads.rules, ads.set_values, ads.columns.rule_of)
    strings = tuple(values.strings for values in set_values)
    return CollectedAds(ads.columns._replace(rule_of=rule_of), rules, strings)
