"""`grace build`: from an ads table to a published snapshot."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import AsJson, Without, numbers
from grace.cli.progress import progress_bars
from grace.configs.errors import CoverageError, InputError
from grace.configs.extras import install_command

if TYPE_CHECKING:
    from grace.index.builder import BuildReport


def build(
    root: Annotated[Path, typer.Option(help="Snapshot root; versions are folders in it.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Data folder: targeting.yaml, and tables.yaml or ads.parquet; or give --ads and "
            "--targeting.",
        ),
    ] = None,
    ads: Annotated[
        list[str] | None,
        typer.Option(
            "--ads",
            metavar="TABLE",
            help="Parquet, JSON lines or CSV: a file, a folder of them or a URL; repeatable.",
        ),
    ] = None,
    targeting: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The targeting schema, YAML.")
    ] = None,
    sids: Annotated[
        str | None,
        typer.Option(
            metavar="CODEBOOK",
            help="Folder that `grace sids` wrote, or a table of item_id and sid. Default: "
            "tables.yaml, or the ads' column sid.",
        ),
    ] = None,
    id_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Parquet that numbers ads of any id, and keeps their numbers. Default: "
            "tables.yaml, or ids are integers.",
        ),
    ] = None,
    sid_space: Annotated[
        str | None, typer.Option(help="Name of the SID space. Default: the Parquet metadata.")
    ] = None,
    vocab_sizes: Annotated[
        str | None,
        typer.Option(
            help="Tokens per position, as 512,512,512,512. Default: the Parquet metadata."
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Number of the new version. Default: one above the latest.")
    ] = None,
    updates_watermark: Annotated[
        int,
        typer.Option(help="Number of the last update of ads that the table has."),
    ] = 0,
    without: Without = None,
    max_rejects: Annotated[
        int, typer.Option(min=0, help="Leave out up to this many faulty ads.")
    ] = 0,
    reject_file: Annotated[
        Path | None,
        typer.Option(help="List refused ads here. Default: ROOT/VERSION.rejects.jsonl."),
    ] = None,
    publish: Annotated[bool, typer.Option(help="Make the new version current.")] = True,
    max_coverage_drop: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Do not publish if the share of ads with a rule on an attribute or set falls by "
            "more than this part of what it was in the current version; 1 allows every fall.",
        ),
    ] = 0.2,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of threads. Default: all cores; with --ray 1 per task."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Build N ranges of first tokens one by one: less memory, the same bytes. N is at "
            "most the number of first tokens. Default with --ray: as many as Ray runs at once.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Build the shards on this Ray cluster, or `local`."),
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Folder for the shards' files. Default: in ROOT.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a snapshot from a table of ads, and publish it.

    Example: `grace build --data shop --root shop/snapshots`

    Or: `grace build --ads data/ads.parquet --targeting data/targeting.yaml --root snapshots`
    """
    if threads is None and ray is not None:
        threads = 1
    if scratch is not None and shards is None and ray is None:
        raise typer.BadParameter("give --shards or --ray as well", param_hint="--scratch")
    chosen: dict[str, Any] = {} if threads is None else {"threads": threads}
    spec = replace(
        _spec(data, ads, targeting, sids, id_map, root),
        sid_space=sid_space,
        vocab_sizes=numbers(vocab_sizes, "--vocab-sizes", "512,512,512,512"),
        version=version,
        updates_watermark=updates_watermark,
        max_rejects=max_rejects,
        without=tuple(dict.fromkeys(without or ())),
        reject_file=reject_file,
        publish=publish,
        max_coverage_drop=max_coverage_drop,
        **chosen,
    )
    with progress_bars() as progress:
        report = _build(spec, shards, ray, scratch, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print_report(report, shards)
    if report.coverage.falls or (publish and not report.coverage.may_be_published):
        raise CoverageError(_unpublished(report))


def _print_report(report: "BuildReport", shards: int | None) -> None:
    from grace.cli.tables import coverage_table, table_console

    state = "published" if report.published else "not published"
    print(f"version {report.version} ({state}): {report.path}")
    print(f"from {report.rows:,} rows in {report.files} file{'s' if report.files > 1 else ''}")
    if report.new_sids:
        new = f"{report.new_sids:,} new ad{'s' if report.new_sids > 1 else ''}"
        print(f"the codebook gave SIDs to {new}")
    change = report.coverage
    before = f" ({change.before.distinct_rules:,} before)" if change.before else ""
    print(
        f"{report.sids:,} SIDs, {report.ads:,} ads, {report.rules:,} distinct rules{before} "
        f"in {sum(report.step_seconds.values()):.1f} s, "
        f"peak memory {report.peak_memory_bytes / 1e9:.2f} GB"
    )
    if report.without:
        print(f"without {', '.join(report.without)}: no ad has a rule on it, or belongs to one")
    if report.ignored_columns:
        names = ", ".join(report.ignored_columns)
        print(f"ignored columns, which targeting.yaml does not name: {names}")
    if report.shards is not None and report.shards < (shards or 0):
        built = f"{report.shards} shard{'s' if report.shards > 1 else ''}"
        print(f"{built} and not {shards}: the ads of one first token stay together")
    if report.rejects:
        refused = f"{report.rejects} ad{'s' if report.rejects > 1 else ''}"
        print(f"{refused} refused, listed in {report.reject_file}")
    table = coverage_table(change.after, change.before, change.version_before)
    table_console().print(table)


def _unpublished(report: "BuildReport") -> str:
    """Return the names that lost rules, or why the build cannot compare them, with the remedy."""
    change = report.coverage
    if change.fault is not None:
        return (
            f"cannot compare the rules with those of the current version: {change.fault}; "
            f"version {report.version} is written, but not published: if its coverage is right, "
            f"`grace publish {report.path.parent} {report.version}`, or build with "
            "--max-coverage-drop 1"
        )
    falls = "; ".join(
        f"{fall.name}: {fall.before:.1%} of the ads had a rule in version "
        f"{change.version_before}, now "
        + ("the schema has no such name" if fall.after is None else f"{fall.after:.1%} have one")
        for fall in change.falls
    )
    return (
        f"{falls}; version {report.version} is written, but not published: if this is right, "
        f"`grace publish {report.path.parent} {report.version}`, or build with a higher "
        f"--max-coverage-drop than {change.most_drop:g}"
    )


def _spec(
    data: Path | None,
    ads: Sequence[str] | None,
    targeting: Path | None,
    sids: str | None,
    id_map: Path | None,
    root: Path,
) -> Any:
    """Return the build of a data folder, or of the tables that the options name."""
    from grace.index.builder import BuildSpec, spec_of
    from grace.index.tables.data_folder import read_data_folder

    ways = "--data FOLDER, or --ads TABLE and --targeting FILE"
    if data is None:
        if not ads or targeting is None:
            raise InputError(f"no table to build: give {ways}")
        return BuildSpec(tuple(ads), targeting, root, sids=sids, id_map=id_map)
    if ads or targeting is not None:
        raise InputError(f"two tables to build: give {ways}, and not both")
    folder = read_data_folder(data)
    spec = spec_of(folder, root)
    if sids is None:
        folder.require_codebook()
    return replace(
        spec,
        sids=spec.sids if sids is None else sids,
        id_map=spec.id_map if id_map is None else id_map,
    )


def _build(
    spec: Any, shards: int | None, ray: str | None, scratch: Path | None, progress: Any
) -> Any:
    """Build the whole catalogue at once, in shards, or in shards on a cluster."""
    from grace.index.builder import Sharding, build, build_in_shards

    if ray is None:
        if shards is None:
            return build(spec, progress, _note)
        return build_in_shards(spec, Sharding(shards, scratch=scratch), progress, _note)
    _send_token_if_there()
    try:
        from grace.cli.catalogue.ray_cluster import ray_tasks
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(f"--ray needs Ray: {install_command('ray')}") from None
    with ray_tasks(ray, spec.threads) as tasks:
        sharding = Sharding(shards or tasks.slots, tasks, scratch)
        return build_in_shards(spec, sharding, progress, _note)


def _send_token_if_there() -> None:
    """Let this process send its token to a Ray cluster, unless the user chose otherwise.

    `ray start` asks for a token if it finds one on its machine, but a process that joins sends its
    own only if RAY_AUTH_MODE says so. Ray reads its environment once, at import.
    """
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr)
