"""The arrays of a snapshot: one table of their files, dtypes, shapes, places, words and checks.

Writing, reading, checking and the table in docs/snapshot.md follow from it.
A new array is a row, and a field of the dataclass that its place names.

SET stands for each set, INTERVAL for each range and flight, PROPERTY for each property, VALUED for
each set and property, ENTITY for each entity. A shape has sizes of `ArrayOf.sizes`, or `any`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

import numpy as np

from grace.configs.arrays import AnyArray
from grace.configs.errors import SnapshotError
from grace.configs.strict_json import shown
from grace.index.forms.components import components_of
from grace.index.matching.ads import NO_ENTITY, Entities, SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.checks import (
    Check,
    Groups,
    Ids,
    Offsets,
    View,
    ends_of_levels,
    finite,
    intervals,
    lookup,
    padding,
    rules_of_ads,
    texts,
    tokens,
)
from grace.index.storage.manifest import MANIFEST, Counts, Manifest
from grace.index.targeting.rules import Lists, TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Row:
    name: str  # of the file, without .npy
    dtype: str
    shape: tuple[str, ...]
    place: str  # in a Snapshot
    holds: str  # for the document
    checks: tuple[Check, ...] = ()


# A row's checks may rely on the rows before it.
TABLE = (
    Row(
        "node_offsets", "<i4", ("internal + 1",), "trie.node_offsets",
        "child entries of node i: offsets i to i + 1; every node has one",
        (Offsets("csr_tokens", "node"), ends_of_levels),
    ),
    Row(
        "csr_tokens", "<u2", ("entries",), "trie.csr_tokens",
        "the token of each child entry, ascending within a node",
        (tokens,),
    ),
    Row(
        "ad_offsets", "<i8", ("leaves + 1",), "ads.ad_offsets",
        "ordinals of leaf i: offsets i to i + 1; every leaf has one",
        (Offsets("ad_ids", "leaf"),),
    ),
    Row(
        "ad_ids", "<i8", ("ads",), "ads.ad_ids",
        "not negative, ascending within a leaf, unique",
        (Groups("id", "ad_offsets"),),
    ),
    Row(
        "ad_rule", "<i4", ("ads",), "ads.ad_rule",
        "rule of each ad, or `rules` + the number of its alternative",
        (Ids("rule", "rules and alternatives"),),
    ),
    Row("ad_weight", "<f4", ("ads",), "ads.ad_weight", "finite", (finite,)),
    Row(
        "ad_lookup", "<i4", ("ads",), "ads.ad_lookup",
        "ordinals in ascending order of ad id",
        (lookup,),
    ),
    Row(
        "rule_rows", "<i4", ("rules", "components"), "rules.rows",
        "the row of each component: of the attributes, then of each set, range, flight, property",
        (Ids("row", "rows"),),
    ),
    Row(
        "rule_bitmask_table", "<u8", ("rule_bitmasks", "W"), "rules.parts.0.table",
        "rows of the attributes: the values that a rule allows; unused bits are 0",
        (padding,),
    ),
    Row(
        "alternative_offsets", "<i8", ("alternatives + 1",), "rules.alternatives.offsets",
        "entries of the next array of alternative i: offsets i to i + 1; every one has some",
        (Offsets("alternative_rules", "alternative"), rules_of_ads),
    ),
    Row(
        "alternative_rules", "<i4", ("any",), "rules.alternatives.values",
        "the rules of each alternative, of which one must pass, in the order of an ad's clauses",
        (Ids("rule", "rules"),),
    ),
    Row(
        "set_include_offsets.SET", "<i8", ("rows + 1",), "rules.parts.PART.include.offsets",
        "entries of the next array of set rule i: offsets i to i + 1; an empty range is no list",
        (Offsets("set_include_values", "set rule", may_be_empty=True),),
    ),
    Row(
        "set_include_values.SET", "<i4", ("any",), "rules.parts.PART.include.values",
        "ids of the values that a set rule includes, ascending within it",
        (Groups("value", "set_include_offsets", "values"),),
    ),
    Row(
        "set_exclude_offsets.SET", "<i8", ("rows + 1",), "rules.parts.PART.exclude.offsets",
        "the same for the values that it excludes",
        (Offsets("set_exclude_values", "set rule", may_be_empty=True),),
    ),
    Row(
        "set_exclude_values.SET", "<i4", ("any",), "rules.parts.PART.exclude.values",
        "ids of the values that a set rule excludes, ascending within it",
        (Groups("value", "set_exclude_offsets", "values"),),
    ),
    Row(
        "set_groups.SET", "<i8", ("rows + 1",), "rules.parts.PART.groups.offsets",
        "groups of set rule i: offsets i to i + 1; a user needs a value of each",
        (Offsets("set_group_offsets", "set rule", may_be_empty=True, of_offsets=True),),
    ),
    Row(
        "set_group_offsets.SET", "<i8", ("groups + 1",), "rules.parts.PART.groups.lists.offsets",
        "entries of the next array of group i: offsets i to i + 1; every group has some",
        (Offsets("set_group_values", "group"),),
    ),
    Row(
        "set_group_values.SET", "<i4", ("any",), "rules.parts.PART.groups.lists.values",
        "ids of the values of a group, ascending within it",
        (Groups("value", "set_group_offsets", "values"),),
    ),
    Row(
        "rule_intervals.INTERVAL", "<f8", ("rows", "2"), "rules.parts.PART.table",
        "both ends, inclusive; infinite if open. A flight's are milliseconds since 1970. "
        "No number is within [1, 0]",
        (intervals,),
    ),
    Row(
        "property_offsets.PROPERTY", "<i8", ("rows + 1",), "rules.parts.PART.values.offsets",
        "entries of the next array of row i: offsets i to i + 1",
        (Offsets("property_values", "row", may_be_empty=True),),
    ),
    Row(
        "property_values.PROPERTY", "<i4", ("any",), "rules.parts.PART.values.values",
        "ids of the values of an ad, ascending within a row",
        (Groups("value", "property_offsets", "values"),),
    ),
    Row(
        "value_offsets.VALUED", "<i8", ("values + 1",), "set_values.VALUED.offsets",
        "bytes of interned value i: offsets i to i + 1",
        (Offsets("value_utf8", "value", may_be_empty=True),),
    ),
    Row(
        "value_utf8.VALUED", "|u1", ("any",), "set_values.VALUED.utf8",
        "UTF-8, values ascending byte by byte",
        (texts,),
    ),
    Row(
        "entity_ids.ENTITY", "<i8", ("entities",), "entities.ENTITY.ids",
        "ids of the entities of this kind, not negative, ascending. An entity's *place* is its "
        "index here",
        (Groups("id"),),
    ),
    Row(
        "entity_of_ad.ENTITY", "<i4", ("ads",), "entities.ENTITY.of_ad",
        "the place of each ad's entity; -1: the ad has none",
        (Ids("entity", "entities", NO_ENTITY),),
    ),
    Row(
        "entity_offsets.ENTITY", "<i8", ("entities + 1",), "entities.ENTITY.offsets",
        "entries of the next array of place i: offsets i to i + 1; every entity has one",
        (Offsets("entity_ads", "entity"),),
    ),
    Row(
        "entity_ads.ENTITY", "<i4", ("any",), "entities.ENTITY.ads",
        "ordinals of each entity's ads, ascending within an entity",
        (Groups("ad", "entity_offsets", "ads"),),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """A row's array of the snapshot itself, or of one of the names of its schema."""

    row: Row
    name: str = ""  # of the schema, or an empty text
    place: tuple[str, ...] = ()  # in the snapshot

    @property
    def file(self) -> str:
        stem, dot, _ = self.row.name.partition(".")
        return f"{stem}{dot}{self.name}.npy"

    def sizes(self, counts: Counts, schema: TargetingSchema) -> dict[str, int]:
        """Return the sizes that this array's shape and checks name."""
        nodes, leaves = sum(counts.nodes_per_level), counts.nodes_per_level[-1]
        rows = [counts.rule_bitmasks, *(counts.rule_rows[n] for n in schema.component_names)]
        return {
            "internal": nodes - leaves,
            "entries": nodes - 1,
            "leaves": leaves,
            "ads": counts.ads,
            "rules": counts.rules,
            "alternatives": counts.alternatives,
            "rules and alternatives": counts.rules + counts.alternatives,
            "rules of ads": counts.ad_rules,
            "rule_bitmasks": counts.rule_bitmasks,
            "W": schema.words,
            "bits": schema.bitmask_bits,
            "components": len(rows),
            **{f"rows {column}": count for column, count in enumerate(rows)},
            "rows": counts.rule_rows.get(self.name, 0),
            "2": 2,
            "groups": counts.groups.get(self.name, 0),
            "values": counts.values.get(self.name, 0),
            "entities": counts.entities.get(self.name, 0),
        }

    def shape(self, counts: Counts, schema: TargetingSchema) -> tuple[int | None, ...]:
        sizes = self.sizes(counts, schema)
        return tuple(
            None if size == "any" else sizes[size.removesuffix(" + 1")] + size.endswith(" + 1")
            for size in self.row.shape
        )


def arrays_of_schema(schema: TargetingSchema) -> Iterator[ArrayOf]:
    """Yield the arrays of a snapshot in the order in which they are written and checked."""
    names = {
        "": ("",),
        "SET": [each.name for each in schema.sets],
        "INTERVAL": [each.name for each in schema.intervals],
        "PROPERTY": [each.name for each in schema.properties],
        "VALUED": schema.valued_names,
        "ENTITY": schema.entities,
    }
    parts = {name: 1 + number for number, name in enumerate(schema.component_names)}
    for kind, of_kind in names.items():
        for number, name in enumerate(of_kind):
            own = {kind: str(number), "PART": str(parts.get(name))}
            for row in TABLE:
                if row.name.partition(".")[2] == kind:
                    place = tuple(own.get(step, step) for step in row.place.split("."))
                    yield ArrayOf(row, name, place)


def check_files(manifest: Manifest) -> None:
    """Raise SnapshotError unless the manifest lists the arrays of the table, and no other."""
    listed = {entry.file: entry for entry in manifest.files}
    expected = {array.file: array for array in arrays_of_schema(manifest.schema)}
    for file in listed:
        if file not in expected:
            raise SnapshotError(
                MANIFEST,
                f"files: {shown(file)} is an array that this GRACE does not know, from a newer "
                "GRACE or from elsewhere: upgrade, or build the snapshot again",
            )
    if len(listed) < len(manifest.files):
        raise SnapshotError(MANIFEST, "files: an array is listed twice")
    for file, array in expected.items():
        if file not in listed:
            raise SnapshotError(file, "not listed in the manifest")
        dtype, found = listed[file].dtype, listed[file].shape
        if dtype != array.row.dtype:
            fault = f"dtype must be {array.row.dtype}, the manifest says {dtype}"
            raise SnapshotError(file, fault)
        shape = array.shape(manifest.counts, manifest.schema)
        if len(shape) != len(found) or any(
            of_file < 0 if size is None else size != of_file
            for size, of_file in zip(shape, found, strict=True)
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            fault = f"shape must be [{wanted}] by the counts, the manifest says {list(found)}"
            raise SnapshotError(file, fault)


def check_arrays(manifest: Manifest, files: Mapping[str, AnyArray], threads: int) -> None:
    """Raise SnapshotError with the file and its first fault. Dtypes and shapes must be right."""
    starts = tuple(np.cumsum([0, *manifest.counts.nodes_per_level]).tolist())
    parts = {file: file.partition(".") for file in files}
    for array in arrays_of_schema(manifest.schema):
        sizes = array.sizes(manifest.counts, manifest.schema)
        endings = {f".{array.name}.npy", ".npy"}
        seen = {stem: files[file] for file, (stem, _, end) in parts.items() if f".{end}" in endings}
        view = View(seen, sizes, manifest.vocab_sizes, starts, threads)
        for check in array.row.checks:
            if fault := check(files[array.file], view):
                raise SnapshotError(array.file, fault)


def arrays_of(snapshot: Snapshot) -> dict[str, AnyArray]:
    """File name -> array, in the order in which they are written."""
    found = {}
    for array in arrays_of_schema(snapshot.schema):
        part: Any = snapshot
        for step in array.place:
            part = part[int(step)] if step.isdigit() else getattr(part, step)
        found[array.file] = part
    return found


def snapshot_of(manifest: Manifest, files: Mapping[str, AnyArray]) -> Snapshot:
    """Return the snapshot of arrays that have the expected dtypes and shapes."""
    placed: dict[str, Any] = {}
    for array in arrays_of_schema(manifest.schema):
        *steps, last = array.place
        within = placed
        for step in steps:
            within = within.setdefault(step, {})
        within[last] = files[array.file]
    counts, schema = manifest.counts, manifest.schema
    facts = {field.name: getattr(manifest, field.name) for field in fields(SnapshotFacts)}
    rules = placed["rules"]
    components = components_of(schema)
    parts = zip(components, rules["parts"].values(), strict=True)
    return Snapshot(
        facts=SnapshotFacts(**{**facts, "version": int(manifest.version)}),
        schema=schema,
        trie=SidTrie(manifest.vocab_sizes, counts.nodes_per_level, **placed["trie"]),
        ads=SidToAds(**placed["ads"]),
        rules=TargetingRules(
            rules["rows"],
            tuple(_made(component.kind, each) for component, each in parts),
            Lists(**rules["alternatives"]),
        ),
        set_values=tuple(InternedValues(**each) for each in placed.get("set_values", {}).values()),
        entities=tuple(
            Entities(schema.entities[int(number)], **each)
            for number, each in placed.get("entities", {}).items()
        ),
    )


def _made(kind: type[Part], placed: Mapping[str, Any]) -> Part:
    hints = get_type_hints(kind)
    return kind(
        **{
            name: _made(hints[name], each) if isinstance(each, dict) else each
            for name, each in placed.items()
        }
    )


def counts_of(snapshot: Snapshot) -> Counts:
    schema, rules = snapshot.schema, snapshot.rules
    return Counts(
        nodes_per_level=tuple(map(int, snapshot.trie.level_counts)),
        ads=snapshot.ads.num_ads,
        rules=rules.num_rules,
        alternatives=rules.num_alternatives,
        ad_rules=rules.count_of(snapshot.ads.ad_rule),
        rule_bitmasks=len(rules.bitmask_table),
        rule_rows=dict(zip(schema.component_names, map(len, rules.parts[1:]), strict=True)),
        groups={
            each.name: len(of_set.groups.lists.offsets) - 1
            for each, of_set in zip(schema.sets, rules.sets, strict=True)
        },
        values=dict(zip(schema.valued_names, map(len, snapshot.set_values), strict=True)),
        entities={entities.name: len(entities) for entities in snapshot.entities},
    )
