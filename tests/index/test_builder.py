"""The builder against the plain builder, array by array, whatever the input's order and cutting."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder import build
from grace.index.storage import current_version, load_snapshot, publish, write_snapshot
from grace.index.verify import require_built
from support.arrays import assert_same_arrays
from support.builds import ads_table, arrays_in, build_spec, built, silent
from support.plain_builder import plain_snapshot
from support.strategies import Case, random_case, random_schema


def assert_built_as_defined(folder: Path, case: Case, **changes: Any) -> None:
    snapshot = built(build_spec(folder, case, **changes))
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))
    require_built(snapshot, threads=1)


@pytest.mark.parametrize("seed", range(6), ids=lambda seed: f"seed={seed}")
def test_the_build_equals_the_plain_builder_array_by_array(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=int(rng.integers(1, 111)))
    shuffled = [case.ads[i] for i in rng.permutation(len(case.ads))]
    batch_rows = int(rng.integers(1, 63))
    assert_built_as_defined(tmp_path, case, files=[shuffled], threads=3, batch_rows=batch_rows)


@pytest.mark.parametrize(
    ("sizes", "num_sets"),
    [((), 3), ((1,), 0), ((63,), 1), ((64,), 2), ((65,), 3), ((250,), 1), ((63, 65, 1, 250), 2)],
    ids=str,
)
def test_attribute_sizes_around_word_borders_build_the_plain_rows(
    tmp_path: Path, sizes: tuple[int, ...], num_sets: int
) -> None:
    rng = np.random.default_rng(sum(sizes) + num_sets)
    case = random_case(rng, num_ads=63, schema=random_schema(rng, sizes, num_sets))
    assert_built_as_defined(tmp_path, case)


def test_order_row_groups_and_threads_do_not_change_a_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    case = random_case(rng, num_ads=222, schema=random_schema(rng, (3, 64, 65), num_sets=2))
    first = arrays_in(build(build_spec(tmp_path / "a", case), silent).path)
    for row_group, batch_rows, threads in ((7, 1000, 1), (1000, 13, 2), (63, 111, 5)):
        ads = [case.ads[i] for i in rng.permutation(len(case.ads))]
        sizes: dict[str, Any] = {"threads": threads, "batch_rows": batch_rows}
        spec = build_spec(tmp_path / str(threads), case, [ads], row_group, **sizes)
        assert arrays_in(build(spec, silent).path) == first


def test_several_files_with_other_column_orders_build_as_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    case = random_case(rng, num_ads=99, schema=random_schema(rng, (5, 64), num_sets=1))
    spec = build_spec(tmp_path, case)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, ads in enumerate((case.ads[:10], case.ads[10:70], case.ads[70:])):
        table = ads_table(case.schema, ads)
        names = [table.column_names[i] for i in rng.permutation(table.num_columns)]
        pq.write_table(table.select(names), folder / f"part-{part}.parquet")
    snapshot = built(replace(spec, ads=(folder,)))
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))


def test_a_build_that_ends_late_does_not_undo_a_newer_publication(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec = build_spec(tmp_path, case)
    build(replace(spec, version=7), silent)
    slow = plain_snapshot(case.schema, case.vocab_sizes, case.ads, version=3)
    path = write_snapshot(slow, spec.root, or_next=True)
    assert path.name == f"{8:020d}", "another build took the number meanwhile"
    publish(spec.root, 8)
    publish(spec.root, 7, only_forward=True)
    assert current_version(spec.root) == 8
    publish(spec.root, 7)
    assert current_version(spec.root) == 7


def test_a_build_without_rule_columns_is_for_everyone_if_asked_for(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(2), num_ads=63)
    plain_ads = [replace(ad, rules={}) for ad in case.ads]
    spec = build_spec(tmp_path, case)
    pq.write_table(ads_table(case.schema, plain_ads).select(["sid", "ad_id"]), spec.ads[0])
    with pytest.raises(InputError, match=f"--without {case.schema.names[0]}"):
        build(spec, silent)
    snapshot = built(replace(spec, without=case.schema.names))
    weightless = [replace(ad, weight=0.0) for ad in plain_ads]
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, weightless))
    assert snapshot.rules.num_rules == 1


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
