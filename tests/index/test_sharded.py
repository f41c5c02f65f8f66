"""A build in shards writes the bytes of a build as a whole, and refuses what that refuses."""

import json
import pickle
import resource
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.configs.errors import InputError, RejectedAdsError, SnapshotError
from grace.index.builder import BuildReport, BuildSpec, Sharding, build
from grace.index.builder.sharding.merge import merge_shards
from grace.index.builder.sharding.scratch import SCRATCH, scratch_folder
from grace.index.builder.sharding.tasks import Result, Task, first_token_ranges
from grace.index.storage import versions
from grace.index.verify import verify_snapshot
from support.builds import arrays_in, build_spec, silent
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import Case, random_ads, random_case, random_schema


def spec_of(folder: Path, case: Case, files: Sequence[Sequence[RawAd]]) -> BuildSpec:
    return build_spec(folder, case, files, row_group_rows=17, root=folder / "whole", batch_rows=13)


def in_shards(spec: BuildSpec) -> BuildSpec:
    return replace(spec, root=spec.root.with_name("shards"))


def facts_and_files(report: BuildReport) -> tuple[dict[str, Any], dict[str, bytes]]:
    manifest = json.loads((report.path / "MANIFEST.json").read_bytes())
    for varying in ("version", "created_at", "manifest_xxh3_128"):
        del manifest[varying]
    return manifest, arrays_in(report.path)


def assert_same_version(one: BuildReport, other: BuildReport) -> None:
    assert facts_and_files(one) == facts_and_files(other)
    counted = {"path", "reject_file", "step_seconds", "seconds", "peak_memory_bytes", "shards"}
    ours, theirs = one.to_json(), other.to_json()
    assert {k: v for k, v in ours.items() if k not in counted} == {
        k: v for k, v in theirs.items() if k not in counted
    }


def nothing_left(root: Path) -> bool:
    return not list(root.glob(f"{SCRATCH}*")) and not list(root.glob(".writing*"))


def elsewhere(tasks: Sequence[Task[Result]], /) -> Generator[tuple[Result, int], None, None]:
    """Run tasks as another machine does: it gets them, and returns results, as bytes."""
    for task in tasks:
        yield sent(sent(task).run())


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


@pytest.mark.parametrize("seed", range(4))
def test_shards_write_the_bytes_of_the_whole(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=int(rng.integers(63, 222)))
    ads = [case.ads[i] for i in rng.permutation(len(case.ads))]
    cut = len(ads) // 3
    spec = spec_of(tmp_path, case, (ads[:cut], ads[cut:]))
    sharding = Sharding(int(rng.integers(1, 9)), elsewhere, run_rows=int(rng.integers(1, 111)))
    report = build(in_shards(spec), silent, sharding=sharding)
    assert_same_version(report, build(spec, silent))
    verify_snapshot(report.path, deep=True)
    assert nothing_left(report.path.parent)


def wide_case(seed: int, num_ads: int) -> Case:
    rng = np.random.default_rng(seed)
    schema = replace(random_schema(rng, (3, 64, 65), num_sets=2), entities=("e0", "e1"))
    vocab_sizes = (63, 5, 3)
    return Case(schema, vocab_sizes, tuple(random_ads(rng, schema, vocab_sizes, num_ads)), ())


def faulty_ads(case: Case) -> list[RawAd]:
    """Two copies of an id in different shards, three where one is faulty, and other faults.

    The only ad of the first token 62 is a copy, so there is no shard of it.
    """
    ads = [replace(ad, sid=(ad.sid[0] % 60, *ad.sid[1:])) for ad in case.ads]
    far = replace(ads[0], sid=(62, 4, 2))
    outside = replace(ads[1], sid=(63, 0, 0))
    short = replace(ads[2], ad_id=10**9, sid=(1, 2))
    unknown = replace(ads[3], ad_id=10**9 + 1, rules={"a0": (frozenset({"a0-new"}), None)})
    more = [far, outside, replace(ads[1], sid=(0, 0, 0)), short, unknown]
    return [*ads[:40], *more, *ads[40:]]


def test_the_same_ads_are_refused_and_listed_the_same(tmp_path: Path) -> None:
    case = wide_case(seed=9, num_ads=111)
    ads = faulty_ads(case)
    parts = [ads[:40], ads[40:43], ads[43:]]  # the second begins with a copy of an id
    spec = replace(spec_of(tmp_path, case, parts), max_rejects=7)
    whole = build(spec, silent)
    report = build(in_shards(spec), silent, sharding=Sharding(12, run_rows=31))
    assert_same_version(report, whole)
    assert report.reject_file is not None
    assert whole.reject_file is not None
    assert report.reject_file.read_bytes() == whole.reject_file.read_bytes()
    listed = [json.loads(line) for line in report.reject_file.read_text().splitlines()]
    assert [(Path(each["file"]), each["row"], each["ad_id"]) for each in listed] == [
        (Path(file), row, ad.ad_id)
        for file, part in zip(spec.data.ads.files, parts, strict=True)
        for row, ad in enumerate(part, start=1)
        if sum(ad.ad_id == other.ad_id for other in ads) > 1 or ad.ad_id >= 10**9
    ]


def test_too_many_rejects_end_both_builds_with_the_same_words_and_list(tmp_path: Path) -> None:
    case = wide_case(seed=9, num_ads=63)
    ads = faulty_ads(case)
    spec = spec_of(tmp_path, case, (ads[:41], ads[41:43], ads[43:]))
    spec = replace(spec, max_rejects=4)
    ends = []
    for given, sharding in ((spec, None), (in_shards(spec), Sharding(5, run_rows=31))):
        with pytest.raises(RejectedAdsError) as caught:
            build(given, silent, sharding=sharding)
        listed = given.root / "ended.rejects.jsonl"
        ends.append((str(caught.value).replace(str(listed), ""), listed.read_bytes()))
        assert versions(given.root) == ()
    assert ends[0] == ends[1]


def test_a_failing_task_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    case = wide_case(seed=1, num_ads=99)
    spec = in_shards(spec_of(tmp_path, case, (case.ads[:50], case.ads[50:])))
    second = Path(spec.data.ads.files[1])
    damaged = bytearray(second.read_bytes())
    damaged[100:400] = b"x" * 300
    second.write_bytes(damaged)
    with pytest.raises(InputError, match=r"ads-1\.parquet"):
        build(spec, silent, sharding=Sharding(3))
    assert versions(spec.root) == ()
    assert nothing_left(spec.root)


def test_a_killed_builds_scratch_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    (tmp_path / f"{SCRATCH}dead").mkdir()
    (tmp_path / f"{SCRATCH}dead" / "ads").write_text("left")
    with scratch_folder(tmp_path) as living, scratch_folder(tmp_path) as other:
        assert sorted(tmp_path.glob(f"{SCRATCH}*")) == sorted([living, other])
    assert not list(tmp_path.glob(f"{SCRATCH}*"))


@pytest.mark.parametrize("shards", [1, 2, 7, 99])
def test_first_token_ranges_are_disjoint_and_balanced(shards: int) -> None:
    rng = np.random.default_rng(shards)
    ads = np.where(rng.random(64) < 0.3, 0, rng.pareto(1.5, 64) * 100).astype(np.int64)
    ranges = first_token_ranges(ads, shards)
    assert 1 <= len(ranges) <= shards
    assert all(one[1] <= other[0] for one, other in pairwise(ranges))
    sizes = [int(ads[begin:end].sum()) for begin, end in ranges]
    assert sum(sizes) == ads.sum()
    assert 0 < min(sizes) <= max(sizes) <= ads.sum() / shards + ads.max()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more into any file, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_in_one_line_with_the_task_and_the_folder(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, wide_case(seed=7, num_ads=2222), ())
    steps = set()
    for size in (300, 9600):
        with pytest.raises(InputError) as caught, files_of_at_most(size):
            build(spec, silent, sharding=Sharding(2, run_rows=333))
        message = str(caught.value)
        assert f"{spec.root}: " in message
        assert "free some space there, or build into another root" in message
        assert "\n" not in message
        assert nothing_left(spec.root)
        steps.add(message.partition(" ")[0])
    assert steps == {"reading", "building"}
    assert versions(spec.root) == ()


def test_a_shard_damaged_between_the_steps_is_caught_by_its_digests(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, wide_case(seed=1, num_ads=99), ())

    def damaging(tasks: Sequence[Task[Result]], /) -> Generator[tuple[Result, int], None, None]:
        for task in tasks:
            result = task.run()
            for file in [*spec.root.glob(f"{SCRATCH}*/shard-*/{1:020d}/ad_ids.npy")][2:]:
                content = bytearray(file.read_bytes())
                content[-8] ^= 1
                file.write_bytes(content)
            yield result

    with pytest.raises(SnapshotError, match=r"ad_ids\.npy: damaged: its digest is"):
        build(spec, silent, sharding=Sharding(3, run=damaging))
    assert versions(spec.root) == ()


def test_shards_with_too_many_rules_of_ads_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(np.random.default_rng(0), 63)
    shard = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    monkeypatch.setattr("grace.index.snapshot.MAX_ID", 99)
    with pytest.raises(InputError, match="rules of ads, a snapshot holds at most"):
        merge_shards([shard, shard], shard.facts, 1)
