"""The builder against the plain builder, array by array, whatever the input's order and cutting."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.invariants import check_invariants
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.storage import current_version, load_snapshot, publish, write_snapshot
from support.ads_parquet import ads_table, write_ads, write_schema
from support.arrays import assert_same_arrays
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import Case, random_case, random_schema


def silent(step: str, done: int, total: int) -> None:
    pass


def spec_of(folder: Path, case: Case, ads: Sequence[RawAd], **changes: object) -> BuildSpec:
    """A build of these ads, written as one Parquet file unless `changes` names others."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = BuildSpec(
        ads=(write_ads(folder / "ads.parquet", case.schema, ads),),
        targeting=write_schema(folder / "targeting.yaml", case.schema),
        root=folder / "snapshots",
        sid_space="plain-1",
        vocab_sizes=case.vocab_sizes,
        threads=1,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def built(spec: BuildSpec) -> Snapshot:
    report: BuildReport = build(spec, silent)
    return load_snapshot(spec.root, report.version)


@pytest.mark.parametrize("seed", range(24), ids=lambda seed: f"seed={seed}")
def test_the_build_equals_the_plain_builder_array_by_array(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=int(rng.integers(1, 180)))
    shuffled = [case.ads[i] for i in rng.permutation(len(case.ads))]
    spec = spec_of(tmp_path, case, shuffled, threads=3, batch_rows=int(rng.integers(1, 63)))
    snapshot = built(spec)
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))
    check_invariants(snapshot)


@pytest.mark.parametrize("sizes", [(1,), (63,), (64,), (65,), (250,), (63, 65, 1, 250)], ids=str)
def test_attribute_sizes_around_word_borders_build_the_plain_rows(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(sum(sizes))
    schema = random_schema(rng, attribute_sizes=sizes, num_sets=2)
    case = random_case(rng, num_ads=111, schema=schema)
    snapshot = built(spec_of(tmp_path, case, case.ads))
    assert_same_arrays(snapshot, plain_snapshot(schema, case.vocab_sizes, case.ads))


def test_mode_cd_builds_the_trie_and_ads_without_matchers(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(5), num_ads=63)
    snapshot = built(spec_of(tmp_path, case, case.ads, mode=MatcherMode.CD))
    plain = plain_snapshot(case.schema, case.vocab_sizes, case.ads, MatcherMode.CD)
    assert snapshot.matchers is None
    assert_same_arrays(snapshot, plain)


def files_of(root: Path) -> dict[str, bytes]:
    version = current_version(root)
    assert version is not None
    folder = root / f"{version:020d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


@pytest.mark.parametrize(
    ("row_group", "batch_rows", "threads"),
    [(7, 1000, 1), (1000, 13, 2), (63, 111, 5)],
    ids=str,
)
def test_order_row_groups_and_threads_do_not_change_a_byte(
    tmp_path: Path, row_group: int, batch_rows: int, threads: int
) -> None:
    rng = np.random.default_rng(11)
    case = random_case(rng, num_ads=333, schema=random_schema(rng, (3, 64, 65), num_sets=2))
    first = spec_of(tmp_path / "a", case, case.ads)
    build(first, silent)
    shuffled = [case.ads[i] for i in rng.permutation(len(case.ads))]
    second = spec_of(tmp_path / "b", case, [], threads=threads, batch_rows=batch_rows)
    write_ads(second.ads[0], case.schema, shuffled, row_group)
    build(second, silent)
    assert files_of(first.root) == files_of(second.root)


def test_several_files_with_other_column_orders_build_as_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    case = random_case(rng, num_ads=99, schema=random_schema(rng, (5, 64), num_sets=1))
    spec = spec_of(tmp_path, case, case.ads)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, ads in enumerate((case.ads[:10], case.ads[10:70], case.ads[70:])):
        table = ads_table(case.schema, ads)
        names = [table.column_names[i] for i in rng.permutation(table.num_columns)]
        pq.write_table(table.select(names), folder / f"part-{part}.parquet")
    snapshot = built(replace(spec, ads=(folder,)))
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))


@pytest.mark.parametrize("text", ["large_string", "dictionary"])
@pytest.mark.parametrize("lists", ["list", "large_list", "fixed_size_list"])
def test_every_list_and_text_type_of_arrow_builds_the_same(
    tmp_path: Path, lists: str, text: str
) -> None:
    rng = np.random.default_rng(8)
    case = random_case(rng, num_ads=77, schema=random_schema(rng, (5,), num_sets=1))
    spec = spec_of(tmp_path, case, case.ads)
    strings = pa.large_string() if text == "large_string" else pa.dictionary("int32", pa.string())
    table = ads_table(case.schema, case.ads, strings)
    length = len(case.vocab_sizes)
    sid_type = {
        "list": pa.list_(pa.int64()),
        "large_list": pa.large_list(pa.uint16()),
        "fixed_size_list": pa.list_(pa.int32(), length),
    }[lists]
    table = table.set_column(
        table.column_names.index("sid"),
        "sid",
        pa.array([list(ad.sid) for ad in case.ads], sid_type),
    )
    pq.write_table(table, spec.ads[0])
    snapshot = built(spec)
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))


def test_dictionary_encoded_rules_build_across_the_borders_of_row_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    case = random_case(rng, num_ads=77, schema=random_schema(rng, (5,), num_sets=1))
    spec = spec_of(tmp_path, case, case.ads)
    table = ads_table(case.schema, case.ads, pa.dictionary("int32", pa.string()))
    pq.write_table(table, spec.ads[0], row_group_size=7)
    snapshot = built(spec)
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, case.ads))


def test_a_build_that_ends_late_does_not_undo_a_newer_publication(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec = spec_of(tmp_path, case, case.ads)
    build(replace(spec, version=7), silent)
    slow = plain_snapshot(case.schema, case.vocab_sizes, case.ads, version=3)
    path = write_snapshot(slow, spec.root, or_next=True)
    assert path.name == f"{8:020d}", "another build took the number meanwhile"
    publish(spec.root, 8)
    publish(spec.root, 7, only_forward=True)
    assert current_version(spec.root) == 8
    publish(spec.root, 7)
    assert current_version(spec.root) == 7


def test_a_table_without_rule_columns_builds_ads_for_everyone(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(2), num_ads=63)
    plain_ads = [replace(ad, rules={}) for ad in case.ads]
    spec = spec_of(tmp_path, case, plain_ads)
    table = ads_table(case.schema, plain_ads).select(["sid", "ad_id"])
    pq.write_table(table, spec.ads[0])
    snapshot = built(spec)
    weightless = [replace(ad, weight=0.0) for ad in plain_ads]
    assert_same_arrays(snapshot, plain_snapshot(case.schema, case.vocab_sizes, weightless))
    assert snapshot.rules.num_rules == 1


def test_versions_count_up_and_the_last_build_is_current(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec = spec_of(tmp_path, case, case.ads)
    assert [build(spec, silent).version for _ in range(3)] == [1, 2, 3]
    assert current_version(spec.root) == 3
    unpublished = build(replace(spec, publish=False), silent)
    assert (unpublished.version, unpublished.published) == (4, False)
    assert current_version(spec.root) == 3


def test_the_files_metadata_names_the_sid_space_and_vocabulary(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(6), num_ads=31)
    spec = spec_of(tmp_path, case, case.ads, sid_space=None, vocab_sizes=None)
    table = ads_table(case.schema, case.ads)
    sizes = ",".join(map(str, case.vocab_sizes))
    metadata = {"grace.sid_space": "told-by-the-file", "grace.vocab_sizes": sizes}
    pq.write_table(table.replace_schema_metadata(metadata), spec.ads[0])
    snapshot = built(spec)
    assert snapshot.facts.sid_space == "told-by-the-file"
    assert snapshot.trie.vocab_sizes == case.vocab_sizes


def test_the_report_counts_what_the_snapshot_holds(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(9), num_ads=63)
    spec = spec_of(tmp_path, case, case.ads)
    seen: list[tuple[str, int, int]] = []
    report = build(spec, lambda step, done, total: seen.append((step, done, total)))
    snapshot = load_snapshot(spec.root)
    assert (report.ads, report.sids) == (63, snapshot.trie.num_leaves)
    assert report.rules == snapshot.rules.num_rules
    assert list(report.step_seconds) == ["read ads", "arrange", "join matchers", "write"]
    ends = {step: done == total for step, done, total in seen}
    assert ends == dict.fromkeys(report.step_seconds, True)
