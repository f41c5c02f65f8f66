"""MANIFEST.json: its fields and their checks, for content that may be anything."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from math import prod
from typing import Any, NoReturn

import xxhash

from grace.configs.errors import ConfigError, SnapshotError
from grace.configs.sections import load_section
from grace.configs.strict_json import parse_object, shown
from grace.index.snapshot import (
    MAX_ID,
    MAX_SID_LENGTH,
    MAX_VERSION,
    MAX_VOCAB_SIZE,
    creation_time,
    is_sid_space,
)
from grace.index.storage.folder import version_of_name
from grace.index.targeting.schema import EXPRESSION, TargetingSchema, plain_column

MANIFEST = "MANIFEST.json"
FORMAT = "grace-snapshot"
FORMAT_VERSION = 3
MAX_BYTES = 16 << 20
_NO_DIGEST = "0" * 32
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    file: str
    dtype: str  # as NumPy writes it: "<i4"
    shape: tuple[int, ...]
    bytes: int  # of the whole file, header included
    xxh3_128: str  # of the same bytes

    @property
    def data_bytes(self) -> int:
        return prod(self.shape) * int(self.dtype[-1])


@dataclass(frozen=True, slots=True)
class Counts:
    nodes_per_level: tuple[int, ...]
    ads: int
    rules: int
    alternatives: int
    ad_rules: int  # of all ads, each rule of an alternative counted
    rule_bitmasks: int
    rule_rows: dict[str, int]  # of each other component
    groups: dict[str, int]  # of the rows of each set
    values: dict[str, int]  # of each set and property
    entities: dict[str, int]  # distinct ones

    @property
    def rows(self) -> int:
        """The distinct rows of all components. A mask has a bit for each group of a row, too."""
        return self.rule_bitmasks + sum((*self.rule_rows.values(), *self.groups.values()))


@dataclass(frozen=True, slots=True)
class Manifest:
    format: str
    format_version: int
    version: str
    created_at: str
    sid_space: str
    vocab_sizes: tuple[int, ...]
    schema: TargetingSchema
    counts: Counts
    rejects: int
    updates_watermark: int
    rule_columns: tuple[str, ...]
    files: tuple[FileEntry, ...]
    manifest_xxh3_128: str = _NO_DIGEST

    def __post_init__(self) -> None:
        for fault in chain(_faults(self), _faults_of_counts(self)):
            raise ValueError(fault)


def render_manifest(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    fields["manifest_xxh3_128"] = _NO_DIGEST
    blank = json.dumps(fields, indent=1, ensure_ascii=False).encode() + b"\n"
    # The digest is the last field, so that no text before it can be taken for it.
    place = blank.rindex(_NO_DIGEST.encode())
    digest = xxhash.xxh3_128_hexdigest(blank).encode()
    return blank[:place] + digest + blank[place + len(_NO_DIGEST) :]


def parse_manifest(content: bytes) -> Manifest:
    try:
        fields = parse_object(content)
    except ValueError as error:
        _refuse(str(error))
    if fields.get("format") != FORMAT:
        _refuse(f"format must be {FORMAT!r}, got {shown(fields.get('format'))}")
    _check_digest(content, fields)
    format_version = fields.get("format_version")
    if type(format_version) is not int or format_version < 1:
        _refuse(f"format_version: expected a positive integer, got {shown(format_version)}")
    formats = f"(format {shown(format_version)}, this one reads {FORMAT_VERSION})"
    if format_version > FORMAT_VERSION:
        _refuse(f"written by a newer GRACE {formats}: upgrade")
    if format_version < FORMAT_VERSION:
        _refuse(f"written by an older GRACE {formats}: build it again")
    try:
        return load_section(Manifest, fields)
    except ConfigError as error:
        raise SnapshotError(MANIFEST, str(error)) from None


def _check_digest(content: bytes, fields: Mapping[str, Any]) -> None:
    """Over all bytes of the file, the digest's own 32 digits taken as zeros."""
    digest = fields.get("manifest_xxh3_128")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        _refuse(f"manifest_xxh3_128: expected 32 hexadecimal digits, got {shown(digest)}")
    place = content.rfind(digest.encode())
    blank = content[:place] + _NO_DIGEST.encode() + content[place + len(digest) :]
    found = xxhash.xxh3_128_hexdigest(blank)
    if found != digest:
        _refuse(f"damaged: its digest is {found}, but it says {digest}")


def _faults(manifest: Manifest) -> Iterator[str]:
    for name, good, expected in (
        ("version", version_of_name(manifest.version), "20 digits"),
        ("created_at", creation_time(manifest.created_at), "a time such as 2026-01-31T12:00:00Z"),
        ("sid_space", is_sid_space(manifest.sid_space), "1 to 255 printable characters"),
    ):
        if not good:
            yield f"{name}: expected {expected}, got {shown(getattr(manifest, name))}"
    yield from _beyond("rejects", manifest.rejects, 0, MAX_VERSION)
    yield from _beyond("updates_watermark", manifest.updates_watermark, 0, MAX_VERSION)
    for column in manifest.rule_columns:
        if plain_column(column) not in (*manifest.schema.rule_columns, EXPRESSION):
            yield f"rule_columns: the schema has no {shown(column)}"
    yield from _beyond("number of vocab_sizes", len(manifest.vocab_sizes), 1, MAX_SID_LENGTH)
    for i, size in enumerate(manifest.vocab_sizes):
        yield from _beyond(f"vocab_sizes[{i}]", size, 1, MAX_VOCAB_SIZE)


def _faults_of_counts(manifest: Manifest) -> Iterator[str]:
    counts, schema = manifest.counts, manifest.schema
    nodes, levels = counts.nodes_per_level, len(manifest.vocab_sizes) + 1
    yield from _beyond("number of counts.nodes_per_level", len(nodes), levels, levels)
    yield from _beyond("counts.nodes_per_level[0]", nodes[0], 1, 1)
    for level, size in enumerate(manifest.vocab_sizes, start=1):
        most = min(nodes[level - 1] * size, MAX_ID)
        yield from _beyond(f"counts.nodes_per_level[{level}]", nodes[level], 1, most)
    yield from _beyond("sum of counts.nodes_per_level", sum(nodes), 1, MAX_ID)
    yield from _beyond("counts.ads", counts.ads, nodes[-1], MAX_ID)
    yield from _beyond("counts.ad_rules", counts.ad_rules, counts.ads, MAX_ID)
    yield from _beyond("counts.rules", counts.rules, 1, counts.ad_rules)
    most = min(counts.ads, MAX_ID - counts.rules)
    yield from _beyond("counts.alternatives", counts.alternatives, 0, most)
    yield from _beyond("counts.rule_bitmasks", counts.rule_bitmasks, 1, counts.rules)
    for field, names, least, most in (
        ("rule_rows", schema.component_names, 1, counts.rules),
        ("groups", [each.name for each in schema.sets], 0, MAX_ID - counts.rules),
        ("values", schema.valued_names, 0, MAX_ID),
        ("entities", schema.entities, 0, counts.ads),
    ):
        numbers: Mapping[str, int] = getattr(counts, field)
        if set(numbers) != set(names):
            there = f"expected {shown(sorted(names))}, got {shown(sorted(numbers))}"
            yield f"counts.{field}: {there}"
        for name, number in numbers.items():
            yield from _beyond(f"counts.{field}.{name}", number, least, most)


def _beyond(name: str, value: int, least: int, most: int) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{name}: must be {least} to {most}, got {shown(value)}"


def _refuse(fault: str) -> NoReturn:
    raise SnapshotError(MANIFEST, fault)
