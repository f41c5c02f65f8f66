"""Builds of raw ads, as tests ask for them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from support.ads_parquet import write_ads, write_schema
from support.oracle import RawAd
from support.plain_builder import PLAIN_SID_SPACE
from support.strategies import Case


def silent(step: str, done: int, total: int) -> None:
    pass


def build_spec(
    folder: Path,
    case: Case,
    files: Sequence[Sequence[RawAd]] | None = None,
    row_group_rows: int = 1000,
    **changes: object,
) -> BuildSpec:
    """A build of the case's ads, or of these, a Parquet file each."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = BuildSpec(
        ads=tuple(
            write_ads(folder / f"ads-{at}.parquet", case.schema, part, row_group_rows)
            for at, part in enumerate(files or [case.ads])
        ),
        targeting=write_schema(folder / "targeting.yaml", case.schema),
        root=folder / "snapshots",
        sid_space=PLAIN_SID_SPACE,
        vocab_sizes=case.vocab_sizes,
        threads=1,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def built(spec: BuildSpec) -> Snapshot:
    return load_snapshot(build(spec, silent).path)


def arrays_in(version: Path) -> dict[str, bytes]:
    """The bytes of every array file of a version."""
    return {file.name: file.read_bytes() for file in sorted(version.glob("*.npy"))}
