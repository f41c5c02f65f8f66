"""Coverage against counting raw rules, and which versions a build publishes by it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grace.configs.errors import SnapshotError
from grace.index.builder import BuildSpec, Sharding, build
from grace.index.coverage import CoverageFall, coverage, coverage_of_version
from grace.index.storage import current_version, load_snapshot
from grace.index.storage.reader import map_snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.builds import build_spec, silent
from support.oracle import NO_RULE, RawAd, Rule, Rules
from support.plain_builder import rules_of
from support.strategies import Case, random_ads, random_schema


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
