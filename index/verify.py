"""Verify a snapshot: run every check of a load and, if deep, build its arrays again and compare.

A load checks that arrays are safe to use. The deep check finds what only a faulty builder, or
an edit by hand, causes: a rule that is stored twice or never used, ids that are not by first use, a
rule that no build would keep, entities that do not list their ads.
"""

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from grace.configs.errors import SnapshotError
from grace.configs.machine import available_cores
from grace.index.allocation import plain_memory
from grace.index.builder.arrange import arrange, taken_apart
from grace.index.builder.collect import CollectedAds
from grace.index.builder.rule_table import FAULTS, RuleTable
from grace.index.snapshot import Snapshot
from grace.index.storage import readable_current
from grace.index.storage.arrays import arrays_of
from grace.index.storage.manifest import Counts
from grace.index.storage.reader import open_snapshot, read_snapshot
from grace.index.targeting.schema import RESERVED_VALUE


@dataclass(frozen=True, slots=True)
class VerifyReport:
    path: Path
    version: int
    is_current: bool
    created_at: str
    sid_space: str
    files: int
    bytes: int
    counts: Counts
    rejects: int
    deep: bool


def verify_snapshot(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    deep: bool = False,
    threads: int | None = None,
) -> VerifyReport:
    """Raise SnapshotError with the file and the fault, if there is one."""
    threads = threads or available_cores()
    with open_snapshot(path, version) as opened:
        snapshot = read_snapshot(opened, threads, plain_memory)
        if deep:
            require_built(snapshot, threads)
    manifest = opened.manifest
    return VerifyReport(
        path=opened.path,
        version=int(manifest.version),
        is_current=readable_current(opened.path.parent) == int(manifest.version),
        created_at=manifest.created_at,
        sid_space=manifest.sid_space,
        files=len(manifest.files),
        bytes=sum(entry.bytes for entry in manifest.files),
        counts=manifest.counts,
        rejects=manifest.rejects,
        deep=deep,
    )


def require_built(snapshot: Snapshot, threads: int) -> None:
    """Raise SnapshotError unless a build of the same ads and rules makes the same arrays."""
    for name, values in zip(snapshot.schema.valued_names, snapshot.set_values, strict=True):
        if RESERVED_VALUE in values.ids:
            fault = f"value {values.ids[RESERVED_VALUE]} is the reserved {RESERVED_VALUE!r}"
            raise SnapshotError(f"value_utf8.{name}.npy", fault)
    facts, schema, vocab_sizes = snapshot.facts, snapshot.schema, snapshot.trie.vocab_sizes
    built = arrange(_collected(snapshot, threads), facts, schema, vocab_sizes, threads)
    expected = arrays_of(built)
    for file, held in arrays_of(snapshot).items():
        wanted = expected[file]
        if held.shape != wanted.shape:
            fault = f"has shape {list(held.shape)}, but built again {list(wanted.shape)}"
            raise SnapshotError(file, fault)
        wrong = np.flatnonzero(held != wanted)
        if len(wrong):
            at, flat, again = int(wrong[0]), held.reshape(-1), wanted.reshape(-1)
            raise SnapshotError(file, f"entry {at} is {flat[at]}, but built again {again[at]}")


def _collected(snapshot: Snapshot, threads: int) -> CollectedAds:
    """Return the ads as if they had just been read, with each rule encoded again."""
    schema = snapshot.schema
    with closing(RuleTable(schema, threads)) as table:
        rule_of, faults = table.add_again(snapshot.rules)
        encoded, rule_of = table.take(rule_of)
    for row in np.flatnonzero(faults[:, 0])[:1].tolist():
        fault, column = faults[row].tolist()
        words = f"no build keeps rule {row}: {schema.rule_columns[column]}: {FAULTS[fault]}"
        raise SnapshotError("rule_rows.npy", words)
    ads = taken_apart(snapshot)
    columns = ads.columns._replace(rule_of=rule_of[ads.columns.rule_of])
    return replace(ads, columns=columns, rules=encoded)
