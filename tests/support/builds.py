"""Raw ads as the Parquet files that a build reads, and builds of them as tests ask for them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import TargetingSchema
from support.oracle import NO_RULE, RawAd
from support.plain_builder import PLAIN_SID_SPACE
from support.strategies import Case


def ads_table(schema: TargetingSchema, ads: Sequence[RawAd]) -> pa.Table:
    """One row per ad; a column for every attribute and set, its `_exclude`, and every entity."""
    columns: dict[str, Any] = {
        "ad_id": pa.array([ad.ad_id for ad in ads], pa.int64()),
        "sid": pa.array([list(ad.sid) for ad in ads], pa.list_(pa.uint16())),
        "ad_weight": pa.array([ad.weight for ad in ads], pa.float32()),
    }
    for name in schema.names:
        rules = [ad.rules.get(name, NO_RULE) for ad in ads]
        for column, side in ((name, 0), (f"{name}_exclude", 1)):
            values = [rule[side] for rule in rules]
            lists = [None if listed is None else sorted(listed) for listed in values]
            columns[column] = pa.array(lists, pa.list_(pa.string()))
    for name in schema.entities:
        columns[name] = pa.array([ad.entities.get(name) for ad in ads], pa.int64())
    return pa.table(columns)


def write_schema(path: Path, schema: TargetingSchema) -> Path:
    """Write the schema in YAML, the way a person would."""
    document = json.loads(json.dumps(asdict(schema)))
    for kind in ("attributes", "sets"):
        sections = {each.pop("name"): each for each in document[kind]}
        document[kind] = {
            name: {key: value for key, value in section.items() if value is not None}
            for name, section in sections.items()
        }
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), "utf-8")
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
    for path, part in parts.items():
        pq.write_table(ads_table(case.schema, part), path, row_group_size=row_group_rows)
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
        stated |= {name for name, (include, exclude) in ad.rules.items() if include or exclude}
        stated |= ad.entities.keys()
    return tuple(name for name in (*schema.names, *schema.entities) if name not in stated)


def built(spec: BuildSpec) -> Snapshot:
    return load_snapshot(build(spec, silent).path)


def arrays_in(version: Path) -> dict[str, bytes]:
    """The bytes of every array file of a version."""
    return {file.name: file.read_bytes() for file in sorted(version.glob("*.npy"))}
