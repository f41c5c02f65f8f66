"""Builds against the plain builder, array by array; refused ads are listed, or end the build."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.builder import BuildSpec, build
from grace.index.storage import current_version, publish, versions, write_snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from grace.index.verify import require_built
from support.arrays import assert_same_arrays
from support.builds import build_spec, built, silent
from support.oracle import RawAd, Rule
from support.plain_builder import plain_snapshot
from support.strategies import Case, random_case, random_schema

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


def test_every_step_of_a_build_is_shown_until_it_is_done(tmp_path: Path) -> None:
    seen: dict[str, bool] = {}
    spec = build_spec(tmp_path, random_case(np.random.default_rng(9), num_ads=63))
    report = build(spec, lambda step, done, total: seen.update({step: done == total}))
    assert seen == dict.fromkeys(("read ads", "arrange", "measure coverage", "write"), True)
    assert list(report.step_seconds) == [*seen]


SCHEMA = TargetingSchema((Attribute("country", ("US", "NO")),), (), hash_seed=7)
REFUSED: Rule = (frozenset({"ZZ"}), None)


def spec_of(folder: Path, *rules: Rule) -> BuildSpec:
    """A build of an ad for everybody, and an ad for each rule."""
    ads = [RawAd(101 + at, (1, 2, 3), 1.0, {"country": rule}) for at, rule in enumerate(rules)]
    return build_spec(folder, Case(SCHEMA, (4, 4, 4), (RawAd(100, (1, 2, 3)), *ads), ()))


def test_the_list_of_an_ended_build_claims_no_version_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    with pytest.raises(RejectedAdsError, match=r"ended\.rejects\.jsonl"):
        build(spec_of(tmp_path, REFUSED), silent)
    fixed = spec_of(tmp_path, (frozenset({"US"}), None))
    assert versions(fixed.root) == ()
    report = build(fixed, silent)
    assert (report.version, report.reject_file) == (1, None)
    assert not list(fixed.root.glob("*.jsonl"))


def test_where_no_reject_is_allowed_the_message_says_how_to_see_all(tmp_path: Path) -> None:
    spec = replace(spec_of(tmp_path, *[REFUSED] * 5), batch_rows=2)
    for limit, remedy in ((0, "`--max-rejects 1000000 --no-publish` lists all"), (2, "allow more")):
        with pytest.raises(RejectedAdsError, match="country 'ZZ': is not among") as caught:
            build(replace(spec, max_rejects=limit), silent)
        assert str(caught.value).endswith(remedy)
    report = build(replace(spec, max_rejects=1_000_000, publish=False), silent)
    assert (report.rejects, report.published) == (5, False)


def test_a_list_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, REFUSED)
    (spec.root / "ended.rejects.jsonl").mkdir(parents=True)
    with pytest.raises(InputError, match=r"rejects\.jsonl: cannot write the list of refused ads"):
        build(spec, silent)


def test_list_elements_under_a_null_are_not_read(tmp_path: Path) -> None:
    """Arrow allows a null list to cover elements; they belong to no row."""
    spec = spec_of(tmp_path, (frozenset({"US"}), None), (None, None))
    (file,) = spec.data.ads.files
    table = pq.read_table(file)
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    values = pa.array(["US", "ZZ", "ZZ", "NO"])
    mask = pa.array([False, True, False])
    column = pa.ListArray.from_arrays(offsets, values, mask=mask)
    at = table.column_names.index("country")
    pq.write_table(table.set_column(at, "country", column), file)
    assert build(spec, silent).rejects == 0
