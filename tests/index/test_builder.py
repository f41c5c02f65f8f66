"""The builder against the plain builder, array by array, whatever the input's order and cutting."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace.index.builder import build
from grace.index.storage import current_version, load_snapshot, publish, write_snapshot
from grace.index.verify import require_built
from support.arrays import assert_same_arrays
from support.builds import build_spec, built, silent
from support.plain_builder import plain_snapshot
from support.strategies import random_case, random_schema

SIZES: list[tuple[tuple[int, ...], int]] = [
    *(((), 3), ((1,), 0), ((63,), 1), ((64,), 2), ((65,), 3), ((250,), 1)),
    ((63, 65, 1, 250), 2),
]


@pytest.mark.parametrize(("sizes", "num_sets"), SIZES, ids=str)
def test_the_build_equals_the_plain_builder_whatever_the_order_and_the_cutting(
    tmp_path: Path, sizes: tuple[int, ...], num_sets: int
) -> None:
    """The sizes of attributes are around the borders of words."""
    rng = np.random.default_rng(sum(sizes) + num_sets)
    schema = random_schema(rng, sizes, num_sets)
    case = random_case(rng, num_ads=int(rng.integers(1, 111)), schema=schema)
    shuffled = [case.ads[i] for i in rng.permutation(len(case.ads))]
    batch_rows, groups = int(rng.integers(1, 63)), int(rng.integers(1, 63))
    spec = build_spec(tmp_path, case, [shuffled], groups, threads=3, batch_rows=batch_rows)
    snapshot = built(spec)
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))
    require_built(snapshot, threads=1)


def test_a_build_that_ends_late_does_not_undo_a_newer_publication(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec = build_spec(tmp_path, case)
    build(spec, silent)
    slow = plain_snapshot(case.schema, case.vocab_sizes, case.ads, version=1)
    path = write_snapshot(slow, spec.root)
    assert path.name == f"{2:020d}", "another build took the number meanwhile"
    publish(spec.root, 2)
    publish(spec.root, 1, only_forward=True)
    assert current_version(spec.root) == 2
    publish(spec.root, 1)
    assert current_version(spec.root) == 1


def test_versions_count_up_and_the_last_build_is_current(tmp_path: Path) -> None:
    spec = build_spec(tmp_path, random_case(np.random.default_rng(4), num_ads=9))
    assert [build(spec, silent).version for _ in range(3)] == [1, 2, 3]
    assert current_version(spec.root) == 3
    unpublished = build(replace(spec, publish=False), silent)
    assert (unpublished.version, unpublished.published) == (4, False)
    assert current_version(spec.root) == 3


def test_the_report_counts_what_the_snapshot_holds(tmp_path: Path) -> None:
    spec = build_spec(tmp_path, random_case(np.random.default_rng(9), num_ads=63))
    seen: list[tuple[str, int, int]] = []
    report = build(spec, lambda step, done, total: seen.append((step, done, total)))
    snapshot = load_snapshot(spec.root)
    assert (report.ads, report.sids) == (63, snapshot.trie.num_leaves)
    assert report.rules == snapshot.rules.num_rules
    assert list(report.step_seconds) == [*("read ads", "arrange", "measure coverage", "write")]
    ends = {step: done == total for step, done, total in seen}
    assert ends == dict.fromkeys(report.step_seconds, True)
