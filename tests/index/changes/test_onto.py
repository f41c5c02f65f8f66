"""`grace build --onto`: the next version, of a version and tables of the ads that change."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import GraceError, InputError
from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.changes.onto import build_onto
from grace.index.storage import load_snapshot
from grace.index.verify import require_built
from support.builds import ads_table, arrays_in, build_spec, silent
from support.changed_ads import RawChange, changed, random_changes
from support.in_process import complaint, printed
from support.oracle import RawAd
from support.strategies import Case, random_case


def onto(spec: BuildSpec, version: int, changes: Sequence[RawChange], case: Case) -> BuildReport:
    puts = [each for each in changes if isinstance(each, RawAd)]
    file = spec.data.folder / "changes.parquet"
    pq.write_table(ads_table(case.schema, puts), file)
    removed = [each for each in changes if not isinstance(each, RawAd)]
    files = [str(file)] if puts or not removed else []
    spec = replace(spec, data=spec.data.of_ads_in(files), without=())
    return build_onto(spec, version, removed, silent, silent)


@pytest.mark.parametrize("seed", range(6))
def test_the_version_has_the_bytes_of_a_build_of_the_changed_ads(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=63)
    spec, ads = build_spec(tmp_path, case), {ad.ad_id: ad for ad in case.ads}
    spec = replace(spec, updates_watermark=7)
    version = build(spec, silent).version
    for watermark in (0, 9):
        changes = random_changes(rng, case, ads, most=20)
        changes.append(ads[min(ads.keys() - {*map(_id, changes)})])
        if watermark:
            changes = [next(iter(ads))]  # the build reads no table
        ads = changed(ads, changes)
        report = onto(replace(spec, updates_watermark=watermark), version, changes, case)
        whole = replace(case, ads=tuple(ads.values()))
        expected = build(build_spec(tmp_path / f"{watermark}", whole), silent)
        assert arrays_in(report.path) == arrays_in(expected.path)
        assert (report.published, report.ads) == (True, len(ads))
        written = load_snapshot(report.path)
        require_built(written, threads=1)
        assert written.facts.updates_watermark == (watermark or 7)
        version = report.version


def _id(change: RawChange) -> int:
    return change.ad_id if isinstance(change, RawAd) else change


def refused(spec: BuildSpec, changes: Sequence[RawChange], case: Case) -> str:
    with pytest.raises(GraceError) as caught:
        onto(spec, 1, changes, case)
    return str(caught.value)


def test_what_cannot_be_built_onto_a_version_is_refused(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=9)
    spec, ad = build_spec(tmp_path, case), case.ads[0]
    build(spec, silent)
    assert "have the ad with number" in refused(spec, [ad, ad.ad_id], case)
    gone: list[RawChange] = [
        replace(ad, sid=(9999,) * len(ad.sid)),
        *(each.ad_id for each in case.ads),
    ]
    assert "refused so far" in refused(spec, gone[:1], case)
    less = replace(spec, max_rejects=1)
    assert "no ad is left; there is nothing" in refused(less, gone, case)
    assert "no rows; add the changed ads to it" in refused(spec, [], case)
    onto(spec, 1, [2**60, 2**60 + 1], case)  # as floats they would be equal
    (tmp_path / "targeting.yaml").write_text("attributes: {planet: {values: [mars]}}\n")
    assert "is not the targeting schema of version 1" in refused(spec, [ad], case)
    with pytest.raises(InputError, match="no version 7 here"):
        onto(spec, 7, [ad], case)


def test_the_command_names_what_is_missing_and_what_it_did_not_find(tmp_path: Path) -> None:
    case = random_case(np.random.default_rng(4), num_ads=33)
    spec = build_spec(tmp_path, case)
    pq.write_table(ads_table(case.schema, case.ads), tmp_path / "ads.parquet")
    pq.write_table(ads_table(case.schema, case.ads[:3]), tmp_path / "few.parquet")
    inputs: tuple[str | Path, ...] = ("build", "--data", tmp_path, "--root", spec.root)
    whole = ("--sid-space", "plain", "--vocab-sizes", ",".join(map(str, case.vocab_sizes)))
    without = [each for name in spec.without for each in ("--without", name)]
    printed(*inputs, *whole, *without)
    few: tuple[str | Path, ...] = ("--ads", tmp_path / "few.parquet", *without)
    for lone in (few, ("--onto", "1"), ("--sids", "x.parquet"), ("--remove", "1")):
        assert "--onto VERSION needs --ads TABLE or --remove AD" in complaint(*inputs, *lone)
    fault = complaint(*inputs, *few, "--onto", "1", "--shards", "2")
    assert "leave --shards and --ray out" in fault
    said = printed(*inputs, *few, "--onto", "1", "--remove", str(case.ads[-1].ad_id))
    assert f"ads: {len(case.ads) - 1}\n" in said
    assert "version: 2\n" in said
    ids = [ad.ad_id for ad in case.ads[:3]]
    removed = [each for ad_id in ids for each in ("--remove", str(ad_id))]
    maps = spec.root / "id_maps.json"
    maps.write_text('{"ad": {"largest": 3, "digest": "x"}}')  # a build without tables has no maps
    said = printed(*inputs, "--onto", "2", *removed, "--max-coverage-drop", "1")
    assert f"ads: {len(case.ads) - 4}\n" in said
    assert json.loads(maps.read_text())["ad"]["largest"] == 3
    maps.unlink()
    sids, lines = tmp_path / "sids.parquet", tmp_path / "few.jsonl"
    pq.write_table(pa.table({"item_id": ids, "sid": [case.ads[3].sid] * 3}), sids)
    lines.write_text("".join(f'{{"ad_id": {ad_id}}}\n' for ad_id in ids))
    printed(*inputs, "--onto", "3", "--ads", lines, "--sids", sids, "--max-coverage-drop", "1")
    ads, trie = (snapshot := load_snapshot(spec.root)).ads, snapshot.trie
    leaves = np.searchsorted(ads.ad_offsets, ads.ordinals(ids), "right") - 1
    assert trie.sids(leaves).tolist() == [[*case.ads[3].sid]] * 3
