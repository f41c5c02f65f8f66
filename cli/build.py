"""`grace build`: from an ads table to a published snapshot."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.progress import progress_bars

__all__ = ["build"]


def build(
    ads: Annotated[
        list[Path], typer.Option("--ads", help="Parquet file, or folder of them; repeatable.")
    ],
    targeting: Annotated[Path, typer.Option(help="The targeting schema, YAML.")],
    root: Annotated[Path, typer.Option(help="Snapshot root; versions are folders in it.")],
    matchers: Annotated[
        str, typer.Option(help="Matchers of the trie's nodes: cd, union.")
    ] = "union",
    sid_space: Annotated[
        str | None, typer.Option(help="Name of the SID space. Default: the Parquet metadata.")
    ] = None,
    vocab_sizes: Annotated[
        str | None, typer.Option(help="As 512,512,512,512. Default: the Parquet metadata.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Default: one above the latest.")] = None,
    updates_watermark: Annotated[
        int, typer.Option(help="Ad updates up to this sequence number are in the table.")
    ] = 0,
    max_rejects: Annotated[
        int, typer.Option(min=0, help="Build without this many faulty ads.")
    ] = 0,
    reject_file: Annotated[
        Path | None, typer.Option(help="Default: ROOT/VERSION.rejects.jsonl.")
    ] = None,
    publish: Annotated[bool, typer.Option(help="Make the new version current.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A summary for scripts.")] = False,
) -> None:
    """Build a snapshot from an ads table in Parquet, and publish it.

    Example: `grace build --ads data/ads.parquet --targeting data/targeting.yaml --root snapshots`
    """
    from index.builder import BuildSpec
    from index.builder import build as build_snapshot

    chosen: dict[str, Any] = {} if threads is None else {"threads": threads}
    spec = BuildSpec(
        ads=tuple(ads),
        targeting=targeting,
        root=root,
        mode=_mode(matchers),
        sid_space=sid_space,
        vocab_sizes=_sizes(vocab_sizes),
        version=version,
        updates_watermark=updates_watermark,
        max_rejects=max_rejects,
        reject_file=reject_file,
        publish=publish,
        **chosen,
    )
    with progress_bars() as progress:
        report = build_snapshot(spec, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
        return
    state = "published" if report.published else "not published"
    print(f"version {report.version} ({state}): {report.path}")
    print(f"from {report.rows:,} rows in {report.files} file{'s' if report.files > 1 else ''}")
    print(
        f"{report.sids:,} SIDs, {report.ads:,} ads, {report.rules:,} distinct rules "
        f"in {sum(report.step_seconds.values()):.1f} s, "
        f"peak memory {report.peak_memory_bytes / 1e9:.2f} GB"
    )
    if report.ignored_columns:
        print(f"columns without meaning here, ignored: {', '.join(report.ignored_columns)}")
    if report.rejects:
        print(f"{report.rejects} ads refused, listed in {report.reject_file}")


def _mode(name: str) -> Any:
    from index.matchers import MatcherMode

    if name not in tuple(MatcherMode):
        raise typer.BadParameter(
            f"{name!r}; choose from {', '.join(MatcherMode)}", param_hint="--matchers"
        )
    return MatcherMode(name)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"expected sizes such as 512,512,512,512, got {text!r}", param_hint="--vocab-sizes"
        ) from None
