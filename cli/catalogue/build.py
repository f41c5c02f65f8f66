"""`grace build`: from an ads table to a published snapshot."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from grace.cli.options import AsJson, data_ids, number_of
from grace.cli.progress import note, progress_bars
from grace.cli.reports import coverage_table, print_facts
from grace.configs.errors import CoverageError, InputError
from grace.configs.extras import install_command
from grace.configs.options import BuildOptions, Option, Sids

if TYPE_CHECKING:
    from grace.index.builder import BuildReport, BuildSpec
    from grace.index.progress import Progress


@dataclass(frozen=True, slots=True)
class Machines:
    """The way of a build: at once, in shards one by one, or in shards on a cluster."""

    threads: Annotated[
        int | None, Option("Number of threads. Default: all cores; with --ray 1 per task.", least=1)
    ] = None
    shards: Annotated[
        int | None,
        Option(
            "Build N ranges of first tokens one by one: less memory, the same bytes. N is at "
            "most the number of first tokens. Default with --ray: as many as Ray runs at once.",
            least=1,
        ),
    ] = None
    ray: Annotated[
        str | None, Option("Build the shards on this Ray cluster, or `local`.", "ADDRESS")
    ] = None

    def build(self, spec: "BuildSpec", progress: "Progress") -> "BuildReport":
        from grace.index.builder import Sharding, build

        if self.threads is not None or self.ray is not None:
            spec = replace(spec, threads=self.threads or 1)
        if self.ray is None:
            sharding = None if self.shards is None else Sharding(self.shards)
            return build(spec, progress, note, sharding)
        try:
            from grace.cli.catalogue.ray_cluster import ray_tasks
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise InputError(f"--ray needs Ray: {install_command('ray')}") from None
        with ray_tasks(self.ray, spec.threads) as tasks:
            sharding = Sharding(self.shards or tasks.slots, tasks)
            return build(spec, progress, note, sharding)


@dataclass(frozen=True, slots=True)
class ChangedAds:
    """The changed ads, for a build that reads only these."""

    onto: Annotated[
        int | None,
        Option("Build the next version of this one and the changed ads; the others stay.", least=1),
    ] = None
    ads: Annotated[
        tuple[str, ...],
        Option("With --onto, the table of new and changed ads; repeatable.", "TABLE"),
    ] = ()
    remove: Annotated[
        tuple[str, ...], Option("With --onto, remove this ad; repeatable.", "AD")
    ] = ()
    sids: Annotated[
        Sids, "With --ads, a table of item_id and sid; other ads get their SIDs as in any build."
    ] = None

    def build(self, spec: "BuildSpec", machines: Machines, progress: "Progress") -> "BuildReport":
        from grace.index.changes.onto import build_onto

        if self.onto is None or not (self.ads or self.remove):
            raise InputError(
                "--onto VERSION needs --ads TABLE or --remove AD, and --ads, --remove and --sids "
                "need --onto; give both, or build all ads without them"
            )
        if machines != Machines(machines.threads):
            raise InputError("--onto: the build is in memory; leave --shards and --ray out")
        ids = data_ids(spec.data.folder)
        removed = [number_of("ad", each, ids) for each in dict.fromkeys(self.remove)]
        data = spec.data.of_ads_in(self.ads, self.sids)
        spec = replace(spec, data=data, threads=machines.threads or spec.threads)
        return build_onto(spec, self.onto, removed, progress, note)


def build(
    data: Annotated[
        Path, Option("Data folder: targeting.yaml, and tables.yaml or ads.parquet.", "FOLDER")
    ],
    root: Annotated[Path, "Snapshot root; versions are folders in it."],
    chosen: BuildOptions,
    changed: ChangedAds,
    machines: Machines,
    as_json: AsJson = False,
) -> None:
    """Build a snapshot from a table of ads, and publish it.

    Example: `grace build --data shop --root shop/snapshots`
    """
    from grace.index.builder import BuildSpec
    from grace.index.tables.data_folder import read_data_folder

    folder = read_data_folder(data)
    folder.require_codebook()
    given = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    given["without"] = tuple(dict.fromkeys(chosen.without))
    with progress_bars() as progress:
        if changed == ChangedAds():
            report = machines.build(BuildSpec(folder, root, **given), progress)
        else:
            report = changed.build(BuildSpec(folder, root, **given), machines, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        change = report.coverage
        table = coverage_table(change.after, change.before, change.version_before)
        print_facts(report, tables=[table])
    lost = report.coverage.falls or report.coverage.lost_columns
    if lost or (chosen.publish and not report.coverage.may_be_published):
        raise CoverageError(_unpublished(report))


def _unpublished(report: "BuildReport") -> str:
    """Return which rules were lost, or why the build cannot compare them, with the remedy."""
    change = report.coverage
    before = f"had rules in version {change.version_before}"
    lost = [
        f"{fall.name}: {fall.before:.1%} of the ads {before}, now {fall.after or 0:.1%}"
        for fall in change.falls
    ]
    lost += [f"column {column}: {before}, and now none" for column in change.lost_columns]
    if change.fault is not None:
        lost = [f"cannot compare the rules with those of the current version: {change.fault}"]
    return (
        f"{'; '.join(lost)}; version {report.version} is written, but not published: if this is "
        f"right, run `grace publish {report.path.parent} {report.version}`, or build with a higher "
        f"--max-coverage-drop than {change.most_drop:g}; 1 allows everything"
    )
