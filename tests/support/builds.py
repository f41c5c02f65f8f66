"""Raw ads as the Parquet files that a build reads, and builds of them as tests ask for them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalogues.folder import targeting_yaml
from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import Range, TargetingSchema
from support.oracle import NO_RULE, OPEN, RawAd, Rules
from support.plain_builder import PLAIN_SID_SPACE
from support.strategies import Case


def ads_table(schema: TargetingSchema, ads: Sequence[RawAd], has_clauses: bool = False) -> pa.Table:
    """One row per ad; all columns of the schema, those of clauses if an ad has some, and entities.

    Columns on which only clauses have rules are left out, since no name may be in both.
    """
    columns: dict[str, Any] = {
        "ad_id": pa.array([ad.ad_id for ad in ads], pa.int64()),
        "sid": pa.array([list(ad.sid) for ad in ads], pa.list_(pa.uint16())),
        "ad_weight": pa.array([ad.weight for ad in ads], pa.float32()),
    }
    columns |= rule_arrays(schema, [ad.rules for ad in ads])
    if any(ad.clauses for ad in ads):
        clauses = [clause for ad in ads for clause in ad.clauses]
        structs = pa.StructArray.from_arrays(*zip(*_fields(schema, clauses), strict=True))
        ends = [0, *accumulate(len(ad.clauses) for ad in ads)]
        none = [not ad.clauses for ad in ads]
        columns["clauses"] = pa.ListArray.from_arrays(ends, structs, mask=pa.array(none))
    elif has_clauses:
        columns["clauses"] = pa.nulls(len(ads))
    for name in schema.entities:
        columns[name] = pa.array([ad.entities.get(name) for ad in ads], pa.int64())
    return pa.table(columns)


def _fields(schema: TargetingSchema, clauses: Sequence[Rules]) -> Iterator[tuple[pa.Array, str]]:
    for name, array in rule_arrays(schema, clauses).items():
        if array.null_count < len(array):
            yield array, name


def rule_arrays(schema: TargetingSchema, ads: Sequence[Rules]) -> dict[str, pa.Array]:
    """The columns of what ads or clauses say."""
    texts = pa.list_(pa.string())

    def lists(values: Iterable[Collection[str] | None]) -> pa.Array:
        return pa.array([None if each is None else sorted(each) for each in values], texts)

    found: dict[str, pa.Array] = {}
    for name in [*(a.name for a in schema.attributes), *(s.name for s in schema.sets)]:
        for side, end in enumerate(("", "_exclude")):
            found[name + end] = lists(rules.get(name, NO_RULE)[side] for rules in ads)
    for each in schema.sets:
        groups = [rules.get(f"{each.name}_all") for rules in ads]
        sorted_ones = [None if g is None else [sorted(group) for group in g] for g in groups]
        found[f"{each.name}_all"] = pa.array(sorted_ones, pa.list_(texts))
    for interval in schema.intervals:
        is_range = isinstance(interval, Range)
        kind, ends = (
            (pa.float64(), ("_min", "_max"))
            if is_range
            else (pa.timestamp("ms", "UTC"), ("_start", "_end"))
        )
        for side, end in enumerate(ends):
            numbers = [rules.get(interval.name, OPEN)[side] for rules in ads]
            found[interval.name + end] = pa.array(numbers, kind)
    for name in (each.name for each in schema.properties):
        found[name] = lists(rules.get(name) for rules in ads)
    return found


def write_schema(path: Path, schema: TargetingSchema) -> Path:
    path.write_text(targeting_yaml(schema), "utf-8")
    return path


def silent(*_: object) -> None:
    """Progress, for nobody."""


def build_spec(
    folder: Path,
    case: Case,
    files: Sequence[Sequence[RawAd]] | None = None,
    row_group_rows: int = 1000,
    **changes: object,
) -> BuildSpec:
    """A build of the case's ads, or of these, a Parquet file each.

    It goes without the names on which no ad has a rule.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {folder / f"ads-{at}.parquet": part for at, part in enumerate(files or [case.ads])}
    has_clauses = any(ad.clauses for part in parts.values() for ad in part)
    for path, part in parts.items():
        table = ads_table(case.schema, part, has_clauses)
        pq.write_table(table, path, row_group_size=row_group_rows)
    write_schema(folder / "targeting.yaml", case.schema)
    spec = BuildSpec(
        DataFolder(folder, TableSource(tuple(map(str, parts)))),
        root=folder / "snapshots",
        sid_space=PLAIN_SID_SPACE,
        vocab_sizes=case.vocab_sizes,
        threads=1,
        without=unused_names(case.schema, chain(*parts.values())),
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def unused_names(schema: TargetingSchema, ads: Iterable[RawAd]) -> tuple[str, ...]:
    """Return the names on which no ad has a rule, and the entities to which none belongs."""
    stated: set[str] = set()
    for ad in ads:
        for rules in (ad.rules, *ad.clauses):
            stated |= {
                name.removesuffix("_all")
                for name, rule in rules.items()
                if any(each not in (None, frozenset()) for each in rule)
            }
        stated |= ad.entities.keys()
    return tuple(name for name in (*schema.names, *schema.entities) if name not in stated)


def built(spec: BuildSpec) -> Snapshot:
    return load_snapshot(build(spec, silent).path)


def arrays_in(version: Path) -> dict[str, bytes]:
    """The bytes of every array file of a version."""
    return {file.name: file.read_bytes() for file in sorted(version.glob("*.npy"))}
