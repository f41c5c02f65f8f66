"""Builds against the plain builder, array by array; refused ads are listed, or end the build;
coverage against counting raw rules, and which versions a build publishes by it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError, RejectedAdsError, SnapshotError
from grace.index.builder import BuildSpec, Sharding, build
from grace.index.coverage import CoverageFall, coverage, coverage_of_version
from grace.index.storage import current_version, load_snapshot, publish, versions, write_snapshot
from grace.index.storage.reader import map_snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.verify import require_built
from support.arrays import assert_same_arrays
from support.builds import build_spec, built, silent
from support.oracle import NO_RULE, RawAd, Rule, Rules
from support.plain_builder import plain_snapshot, rules_of
from support.strategies import Case, random_ads, random_case, random_schema

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


def spec_of_rules(folder: Path, *rules: Rule) -> BuildSpec:
    """A build of an ad for everybody, and an ad for each rule."""
    ads = [RawAd(101 + at, (1, 2, 3), 1.0, {"country": rule}) for at, rule in enumerate(rules)]
    return build_spec(folder, Case(SCHEMA, (4, 4, 4), (RawAd(100, (1, 2, 3)), *ads), ()))


def test_the_list_of_an_ended_build_claims_no_version_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    with pytest.raises(RejectedAdsError, match=r"ended\.rejects\.jsonl"):
        build(spec_of_rules(tmp_path, REFUSED), silent)
    fixed = spec_of_rules(tmp_path, (frozenset({"US"}), None))
    assert versions(fixed.root) == ()
    report = build(fixed, silent)
    assert (report.version, report.reject_file) == (1, None)
    assert not list(fixed.root.glob("*.jsonl"))


def test_where_no_reject_is_allowed_the_message_says_how_to_see_all(tmp_path: Path) -> None:
    spec = replace(spec_of_rules(tmp_path, *[REFUSED] * 5), batch_rows=2)
    for limit, remedy in ((0, "`--max-rejects 1000000 --no-publish` lists all"), (2, "allow more")):
        with pytest.raises(RejectedAdsError, match="country 'ZZ': is not among") as caught:
            build(replace(spec, max_rejects=limit), silent)
        assert str(caught.value).endswith(remedy)
    report = build(replace(spec, max_rejects=1_000_000, publish=False), silent)
    assert (report.rejects, report.published) == (5, False)


def test_a_list_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    spec = spec_of_rules(tmp_path, REFUSED)
    (spec.root / "ended.rejects.jsonl").mkdir(parents=True)
    with pytest.raises(InputError, match=r"rejects\.jsonl: cannot write the list of refused ads"):
        build(spec, silent)


def test_list_elements_under_a_null_are_not_read(tmp_path: Path) -> None:
    """Arrow allows a null list to cover elements; they belong to no row."""
    spec = spec_of_rules(tmp_path, (frozenset({"US"}), None), (None, None))
    (file,) = spec.data.ads.files
    table = pq.read_table(file)
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    values = pa.array(["US", "ZZ", "ZZ", "NO"])
    mask = pa.array([False, True, False])
    column = pa.ListArray.from_arrays(offsets, values, mask=mask)
    at = table.column_names.index("country")
    pq.write_table(table.set_column(at, "country", column), file)
    assert build(spec, silent).rejects == 0


def counted(schema: TargetingSchema, ads: Sequence[RawAd]) -> tuple[dict[str, float], float]:
    """The shares by name, and that of ads for everybody. An empty exclude list is no rule.

    A property has a share, and limits nobody.
    """

    def has_rule(ad: RawAd, name: str) -> bool:
        return any(limits(rules, name) for rules in rules_of(ad))

    def limits(rules: Rules, name: str) -> bool:
        rule = rules.get(name, NO_RULE)
        if isinstance(rule, frozenset):
            return bool(rule)
        return any(each not in (None, frozenset()) for each in rule) or f"{name}_all" in rules

    with_rule = {name: sum(has_rule(ad, name) for ad in ads) / len(ads) for name in schema.names}
    limiting = set(schema.names) - {each.name for each in schema.properties}
    everybody = sum(not any(has_rule(ad, name) for name in limiting) for ad in ads)
    return with_rule, everybody / len(ads)


@pytest.mark.parametrize("seed", range(11))
def test_shares_are_those_of_the_raw_rules_in_memory_and_from_files(
    tmp_path: Path, seed: int
) -> None:
    """The sizes put attributes at and across the borders of words."""
    rng = np.random.default_rng(seed)
    schema = random_schema(rng, (63, 1, 64, 65, 250)[: seed or None], num_sets=seed % 4)
    if seed >= 7:
        schema = random_schema(rng)
    case = Case(schema, (5, 3), tuple(random_ads(rng, schema, (5, 3), 222)), ())
    report = build(build_spec(tmp_path, case), silent, sharding=Sharding(3) if seed % 2 else None)
    found = coverage(load_snapshot(report.path))
    assert (found.with_rule, found.for_everybody) == counted(schema, case.ads)
    assert list(found.with_rule) == list(schema.names)
    assert found.distinct_rules == report.rules
    assert coverage_of_version(report.path.parent, report.version) == found
    assert (report.coverage.after, report.coverage.before) == (found, None)


COUNTRY = Attribute("country", ("US", "CA", "NO"))
AUDIENCE = TargetSet("audience", 256, 4, 64)
BOTH = TargetingSchema((COUNTRY,), (AUDIENCE,), 0)
US: Rule = (frozenset({"US"}), None)
NOT_SPORTS: Rule = (None, frozenset({"sports"}))


def ads_with(country: int, audience: int) -> Case:
    """Return 100 ads: the first `country` have a rule on it, the first `audience` on that."""

    def rules(at: int) -> Mapping[str, Rule]:
        given = {"country": US} if at < country else {}
        return given | ({"audience": NOT_SPORTS} if at < audience else {})

    ads = tuple(RawAd(at, (at % 7, at % 3), rules=rules(at)) for at in range(100))
    return Case(BOTH, (7, 3), ads, ())


def spec_of(folder: Path, case: Case, **changes: object) -> BuildSpec:
    """All builds of a test are in one root."""
    return replace(build_spec(folder / "ads", case, root=folder / "root"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("country", "audience", "limit", "falls"),
    [
        *((40, 10, 0.2, ()), (90, 10, 0.2, ())),
        *((39, 10, 0.2, ("country",)), (0, 10, 0.2, ("country",))),
        (25, 0, 0.49, ("country", "audience")),
        (25, 0, 0.5, ("audience",)),
        (25, 0, 1.0, ()),
    ],
)
def test_a_name_that_loses_more_than_the_limits_part_of_its_share_is_not_published(
    tmp_path: Path, country: int, audience: int, limit: float, falls: tuple[str, ...]
) -> None:
    build(spec_of(tmp_path, ads_with(50, 10)), silent)
    given = spec_of(tmp_path, ads_with(country, audience), max_coverage_drop=limit)
    report = build(given, silent)
    assert (report.version, report.published) == (2, not falls)
    assert report.coverage.version_before == 1
    shares = {"country": (0.5, country / 100), "audience": (0.1, audience / 100)}
    assert report.coverage.falls == tuple(CoverageFall(name, *shares[name]) for name in falls)
    assert current_version(tmp_path / "root") == (1 if falls else 2)
    assert load_snapshot(report.path).ads.num_ads == 100, "the version is there to be published"


def test_a_column_that_loses_all_its_rules_is_named_although_its_name_kept_others(
    tmp_path: Path,
) -> None:
    """A renamed exclude column would show its ads to the users that it excludes."""
    case = ads_with(50, 10)
    excludes: Mapping[str, Rule] = {"country": (None, frozenset({"NO"}))}
    some = tuple(replace(ad, rules=excludes) if ad.ad_id >= 90 else ad for ad in case.ads)
    before = build(spec_of(tmp_path, replace(case, ads=some)), silent)
    assert before.coverage.after.columns == ("audience_exclude", "country", "country_exclude")
    report = build(spec_of(tmp_path, case), silent)
    assert (report.coverage.falls, report.coverage.lost_columns) == ((), ("country_exclude",))
    assert (report.published, report.coverage.may_be_published) == (False, False)
    assert build(spec_of(tmp_path, case, max_coverage_drop=1.0), silent).published


def test_a_name_that_the_schema_loses_is_a_fall_and_a_new_one_is_none(tmp_path: Path) -> None:
    case = ads_with(50, 0)
    only_country = replace(case, schema=replace(BOTH, sets=()))
    build(spec_of(tmp_path, only_country), silent)
    assert build(spec_of(tmp_path, ads_with(50, 60)), silent).published
    report = build(spec_of(tmp_path, only_country), silent)
    assert report.coverage.falls == (CoverageFall("audience", 0.6, None),)
    assert not report.published


def test_a_version_that_is_removed_or_cut_while_it_is_read_is_refused_by_name(
    tmp_path: Path,
) -> None:
    report = build(spec_of(tmp_path, ads_with(50, 0)), silent)
    mapped = map_snapshot(report.path.parent, report.version)
    file = report.path / "ad_rule.npy"
    os.truncate(file, file.stat().st_size - 4)
    with pytest.raises(SnapshotError, match=r"ad_rule\.npy: changed while it was read"):
        coverage(mapped)
    file.unlink()
    with pytest.raises(SnapshotError, match=r"ad_rule\.npy: changed while it was read"):
        coverage(mapped)


@pytest.mark.parametrize("damaged", ["ad_rule.npy", "MANIFEST.json"])
def test_a_damaged_current_version_is_named_and_replaced_only_if_every_fall_is_allowed(
    tmp_path: Path, damaged: str
) -> None:
    first = build(spec_of(tmp_path, ads_with(50, 10)), silent)
    file = first.path / damaged
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    notes: list[str] = []
    report = build(spec_of(tmp_path, ads_with(0, 10)), silent, notes.append)
    assert (report.published, report.coverage.before) == (False, None)
    assert current_version(tmp_path / "root") == 1
    (note,) = notes
    assert report.coverage.fault is not None
    assert damaged in report.coverage.fault
    spec = spec_of(tmp_path, ads_with(0, 10), max_coverage_drop=1.0)
    assert build(spec, silent).published
    assert note.startswith("coverage is compared with no version: ")
    assert damaged in note
