"""A build that is checked before its first step, and what it does before and after its ads."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from grace.configs.arrays import Int32, Int64
from grace.configs.errors import InputError, SnapshotError
from grace.configs.machine import available_cores
from grace.configs.options import BuildOptions
from grace.configs.strict_json import shown
from grace.index import storage
from grace.index.builder.batches import BATCH_ROWS, AdsReading
from grace.index.builder.item_sids import sids_of_items, why_no_sid
from grace.index.builder.numbering import RootMaps, number_ids
from grace.index.builder.report import BuildReport, Steps, peak_memory
from grace.index.builder.rule_columns import columns_stated
from grace.index.builder.source import AdsSource, ExpectedColumns, open_ads
from grace.index.coverage import CoverageChange, coverage, coverage_of_version
from grace.index.progress import Notify, Progress
from grace.index.rejects import Fault, Reject, RejectLog
from grace.index.snapshot import MAX_VERSION, Snapshot, SnapshotFacts, require_sids
from grace.index.tables.data_folder import DataFolder
from grace.index.tables.item_numbers import IdMap
from grace.index.tables.roles import both_names
from grace.index.tables.sid_table import open_sid_table, require_space, sid_space_in, vocab_sizes_in
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import TargetingSchema, load_schema, plain_column

Stated = TypeVar("Stated")

ENDED_REJECTS = "ended.rejects.jsonl"
"""In the root, the rejects of a build that ended without a version."""

ID_MAPS = "id_maps.json"
"""In the root, the id maps of its latest build."""

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class BuildSpec(BuildOptions):
    """If `data` has only some ads of a catalogue, SID space and vocabulary are the catalogue's."""

    data: DataFolder
    root: Path
    threads: int = field(default_factory=available_cores)
    batch_rows: int = BATCH_ROWS

    @property
    def id_maps(self) -> Mapping[str, Path]:
        """The id map of each column that has one, by our name."""
        data, without = self.data, self.without
        maps = {name: path for name, path in data.entity_ids.items() if name not in without}
        return maps if data.id_map is None else {"ad_id": data.id_map, **maps}


@dataclass(frozen=True, slots=True)
class BuildPlan:
    spec: BuildSpec
    schema: TargetingSchema
    source: AdsSource
    vocab_sizes: tuple[int, ...]
    facts: SnapshotFacts  # without their time and rejects
    log: RejectLog
    steps: Steps
    notify: Notify
    root_maps: RootMaps

    def reading(self) -> AdsReading:
        """Number ads and entities and read SIDs, if the table does not have these itself."""
        names: Mapping[str, IdMap] = {}
        data, sizes = self.spec.data, self.vocab_sizes
        if maps := self.spec.id_maps:
            with self.steps.run("number ids", self.source.rows) as advance:
                names = number_ids(self.source.files, maps, self.root_maps, advance)
        else:
            self.root_maps.require({}, {})
        ad_names = names.get("ad_id")
        sids = sids_of_items(data, self.source, ad_names, sizes, self.steps, self.notify)
        rows = self.spec.batch_rows
        return AdsReading(self.schema, sizes, names, sids, why_no_sid(data), rows)

    def refuse_repeated(self, ids: Int64, rows: Int32) -> Int64:
        """Log the ads that only their repeated id refuses, by row; return their ids, ascending."""
        order = np.argsort(rows)
        ids, rows = ids[order], rows[order]
        id_map = self.spec.id_maps.get("ad_id")
        given = ids.tolist()
        if id_map is not None and given:
            given = IdMap.read(id_map).names(ids)
        first_rows = np.cumsum([0, *(file.rows for file in self.source.files)])
        files = np.searchsorted(first_rows, rows, side="right") - 1
        places = zip(files.tolist(), (rows - first_rows[files]).tolist(), given, strict=True)
        reason = "is repeated; no copy of it is built"
        self.log.extend(
            Reject(self.source.files[file].address, row, ad, Fault("ad_id", str(ad), reason))
            for file, row, ad in places
        )
        return np.unique(ids)

    def facts_of(self, ads: int, stated: Set[str]) -> SnapshotFacts:
        """Return the facts of the ads that are left, if all in all they may be built."""
        if ads == 0:
            listed = self.log.write()
            raise InputError(
                f"all {len(self.log)} ads were refused, see {listed}; nothing to build"
            )
        self._require_stated(stated)
        return self.facts_now(columns_stated(self.schema, stated))

    def facts_now(self, rule_columns: tuple[str, ...], rejects: int = 0) -> SnapshotFacts:
        """`rejects` are those of the version that the ads change."""
        return replace(
            self.facts,
            created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            rejects=rejects + len(self.log),
            rule_columns=rule_columns,
        )

    def _require_stated(self, stated: Set[str]) -> None:
        """Refuse a column without any rule, and a rule on a name that `without` lists."""
        name_of = self.schema.name_of
        stated = {name_of.get(column, column) for column in map(plain_column, stated)}
        for name in (*self.schema.names, *self.schema.entities):
            files = " and ".join(file.address for file in self.source.files[:2])
            if name in self.spec.without and name in stated:
                raise InputError(
                    f"--without {name}: but {files} has rules on it, which no server would "
                    f"enforce; leave --without {name} out, or drop the columns"
                )
            if name not in self.spec.without and name not in stated:
                kind = "is an entity" if name in self.schema.entities else "has a rule"
                shown = both_names(name, self.spec.data.ads.theirs(name))
                raise InputError(
                    f"{files}: column {shown}: in no row there {kind}, so it would change "
                    f"nothing; fill it, or build with --without {name}"
                )

    def finish(self, snapshot: Snapshot, shards: int | None = None, peak: int = 0) -> BuildReport:
        """Write, publish and report. `peak`: bytes of the build's other processes."""
        root = self.spec.root
        with self.steps.run("measure coverage", 1):
            change = self._coverage_change(snapshot)
        with self.steps.run("write", 1):
            path = storage.write_snapshot(snapshot, root, self.notify)
            # The list of an earlier build that failed. This version has replaced its table.
            (root / ENDED_REJECTS).unlink(missing_ok=True)
            reject_file = self.log.write(root / f"{path.name}.rejects.jsonl")
            if self.source.files:  # or no ids were numbered
                self.root_maps.write()
            if self.spec.publish and change.may_be_published:
                # Builds may overlap: one that began earlier must not undo a later publication.
                storage.publish(root, int(path.name), only_forward=True, on_wait=self.notify)
        return BuildReport(
            version=int(path.name),
            path=path.absolute(),
            published=storage.readable_current(path.parent) == int(path.name),
            sid_space=snapshot.facts.sid_space,
            ads=snapshot.ads.num_ads,
            sids=snapshot.trie.num_leaves,
            new_sids=self.steps.new_sids,
            rules=snapshot.rules.num_rules,
            rejects=snapshot.facts.rejects,
            reject_file=reject_file,
            files=len(self.source.files),
            rows=self.source.rows,
            ignored_columns=self.source.ignored_columns,
            without=self.spec.without,
            shards=shards,
            coverage=change,
            step_seconds=self.steps.seconds,
            peak_memory_bytes=max(peak, peak_memory()),
        )

    def _coverage_change(self, snapshot: Snapshot) -> CoverageChange:
        """Compare the coverage with that of the current version, if it can be read."""
        spec, after = self.spec, coverage(snapshot)
        try:
            current = storage.current_version(spec.root) if spec.root.is_dir() else None
            before = None if current is None else coverage_of_version(spec.root, current)
        except (InputError, SnapshotError) as error:
            self.notify(f"coverage is compared with no version: {error}")
            return CoverageChange(after, spec.max_coverage_drop, fault=str(error))
        return CoverageChange(after, spec.max_coverage_drop, before, current)


def plan_build(spec: BuildSpec, progress: Progress, notify: Notify) -> BuildPlan:
    """Raise InputError for anything that can be refused before the work begins."""
    if not 1 <= spec.threads <= MAX_THREADS:
        raise InputError(f"--threads {spec.threads}: give 1 to {MAX_THREADS}, one per core")
    schema = load_schema(spec.data.targeting)
    data, maps = spec.data, frozenset(spec.id_maps)
    first = data.given_sids or data.sids
    sids = None if first is None else open_sid_table(first)
    partial = data.catalogue is not None
    expected = ExpectedColumns(schema, spec.without, sids is not None, maps, partial)
    source = open_ads(data.ads, expected)
    tables = [file.table for file in source.files] if sids is None else [sids]
    sid_space, vocab_sizes = _sid_space_and_vocabulary(spec, tables)
    if not 0 <= spec.updates_watermark <= MAX_VERSION:
        raise InputError(f"updates watermark {spec.updates_watermark}: must be 0 to 2^64 - 1")
    facts = SnapshotFacts(storage.next_version(spec.root), "", sid_space, 0, spec.updates_watermark)
    log = RejectLog(spec.max_rejects, spec.root / ENDED_REJECTS)
    levels = {name: name for name in schema.entities if name not in spec.without}
    kept = RootMaps(spec.root / ID_MAPS, {"ad": "ad_id", **levels})
    if alike := source.columns_like_rules(schema, data.ads.ignore):
        notify(
            f"warning: ignored columns that may be rules: {', '.join(alike)}; name them in "
            "ads.columns of tables.yaml, or, to end this warning, in ads.ignore"
        )
    return BuildPlan(spec, schema, source, vocab_sizes, facts, log, Steps(progress), notify, kept)


def _sid_space_and_vocabulary(
    spec: BuildSpec, tables: Sequence[TableFile]
) -> tuple[str, tuple[int, ...]]:
    """Return those that the caller gives, or else those of the tables that have the SIDs."""
    stated = _single(tables, sid_space_in, "grace.sid_space")
    stated_sizes = _single(tables, vocab_sizes_in, "grace.vocab_sizes")
    name = stated if spec.sid_space is None else spec.sid_space
    sizes = stated_sizes if spec.vocab_sizes is None else spec.vocab_sizes
    if name is None or sizes is None:
        missing = [] if name is not None else ["--sid-space NAME (the model's)"]
        missing += [] if sizes is not None else ["--vocab-sizes 512,512,512,512 (one per token)"]
        raise InputError(
            f"pass {' and '.join(missing)}: no Parquet metadata has grace.sid_space and "
            "grace.vocab_sizes to take them from"
        )
    require_sids(name, sizes)
    whole = spec.data.catalogue
    if whole:
        require_space(whole, name)
    if whole and (stated or name, stated_sizes or sizes) != (name, sizes):
        raise InputError(
            f"{' and '.join(table.address for table in tables[:2])}: SIDs of the space "
            f"{stated or name!r} {[*(stated_sizes or sizes)]}, but the catalogue has {name!r} "
            f"{[*sizes]}; give these ads its SIDs, or build all ads"
        )
    return name, sizes


def _single(
    tables: Sequence[TableFile], read: Callable[[TableFile], Stated | None], key: str
) -> Stated | None:
    """Return the value that the tables' metadata states, or None if none does."""
    found: dict[Stated, str] = {}
    for table in tables:
        if (value := read(table)) is not None:
            found.setdefault(value, table.address)
    if len(found) > 1:
        (one, first), (two, second), *_ = found.items()
        raise InputError(
            f"{second}: metadata {key} is {shown(two)}, but {shown(one)} in {first}; "
            "files of one build share it"
        )
    return next(iter(found), None)
