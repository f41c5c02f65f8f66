"""A manifest may say anything under a right digest: it is refused in words, or it is true."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grace.configs.errors import MOST_OF_A_FAULT, SnapshotError
from grace.index.storage import load_snapshot
from support.forgery import (
    Fields,
    forge_manifest,
    forge_text,
    write_fields,
)

Change = Callable[[Fields], Any]


def assert_manifest_refused(version: Path, fault: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(version)
    assert caught.value.file == "MANIFEST.json"
    assert fault in caught.value.fault
    assert "\n" not in caught.value.fault


def put(path: str, value: object) -> Change:
    """Sets the field at a path such as counts.set_rules.location or files.0.bytes."""

    def change(fields: Fields) -> None:
        *parents, last = path.split(".")
        at: Any = fields
        for name in parents:
            at = at[int(name)] if isinstance(at, list) else at[name]
        at[int(last) if isinstance(at, list) else last] = value

    return change


def drop(name: str) -> Change:
    return lambda fields: fields.pop(name)


GONE = object()
FAULTS: list[tuple[str, object, str]] = [
    ("format", "zip", "format must be 'grace-snapshot', got 'zip'"),
    ("format_version", 3, "written by a newer GRACE (format 3, this one reads 2): upgrade"),
    ("format_version", 1, "written by an older GRACE (format 1, this one reads 2): build it again"),
    ("format_version", 10**400, "written by a newer GRACE (format 1000"),
    ("format_version", 0, "format_version: expected a positive integer, got 0"),
    ("format_version", True, "format_version: expected a positive integer, got True"),
    ("version", "1", "version: expected 20 digits, got '1'"),
    ("version", 1, "version: expected a string"),
    ("version", "٠" * 20, "version: expected 20 digits"),
    ("created_at", "now", "created_at: expected a time such as 2026-01-31T12:00:00Z, got 'now'"),
    *(
        (
            "created_at",
            text,
            f"created_at: expected a time such as 2026-01-31T12:00:00Z, got '{text}'",
        )
        for text in (*("2026-02-30T12:00:00Z", "2016-12-31T23:59:60Z", "2026-01-31T24:00:00Z"),)
    ),
    ("sid_space", "", "sid_space: expected 1 to 255 printable characters, got ''"),
    ("vocab_sizes", [], "number of vocab_sizes: must be 1 to 16, got 0"),
    ("vocab_sizes", [2] * 17, "number of vocab_sizes: must be 1 to 16, got 17"),
    ("schema.sets.0.max_request_values", 3 * 10**9, "max_request_values: must be 1 to 65536"),
    ("vocab_sizes.1", 65537, "vocab_sizes[1]: must be 1 to 65536, got 65537"),
    ("vocab_sizes.1", 1, "counts.nodes_per_level[2]: must be 1 to 2, got 4"),
    ("matchers", {}, "unknown key 'matchers'; known: "),
    ("counts.nodes_per_level", [1], "number of counts.nodes_per_level: must be 4 to 4, got 1"),
    ("counts.nodes_per_level.0", 2, "counts.nodes_per_level[0]: must be 1 to 1, got 2"),
    ("counts.ads", 5, "counts.ads: must be 6 to 2147483647, got 5"),
    ("counts.ads", 2**31, "counts.ads: must be 6 to 2147483647, got 2147483648"),
    ("counts.ads", 8.5, "8.5: only integers are expected"),
    ("counts.rules", 0, "counts.rules: must be 1 to 8, got 0"),
    ("counts.rule_bitmasks", 8, "counts.rule_bitmasks: must be 1 to 7, got 8"),
    ("counts.set_rules.brand", 1, "counts.set_rules: expected ['audience', 'location'], got"),
    ("counts.set_values.location", -1, "counts.set_values.location: must be 0 to"),
    (
        "counts.entities.brand",
        1,
        "counts.entities: expected ['advertiser', 'campaign']",
    ),
    ("counts.entities.campaign", 9, "counts.entities.campaign: must be 0 to 8, got 9"),
    ("counts.entities", {}, "counts.entities: expected ['advertiser', 'campaign']"),
    ("schema.entities", [], "counts.entities: expected []"),
    ("rejects", -1, "rejects: must be 0 to"),
    ("updates_watermark", 2**64, "updates_watermark: must be 0 to"),
    ("rule_columns", ["brand_exclude"], "rule_columns: the schema has no 'brand_exclude'"),
    *(
        ("files.0.file", name, f"files: {name!r} is an array that this GRACE does not know")
        for name in ("../ad_ids.npy", "/etc/passwd", "ad_ids.npy\n")
    ),
    ("files.0.file", "a" * 300 + ".npy", "aaa... is an array that this GRACE does not know"),
    ("files.0.file", "ad_ids.npy", "files: an array is listed twice"),
    ("files.0.mode", 1, "files[0]: unknown key 'mode'"),
    ("comment", "hi", "unknown key 'comment'; known: "),
    *((name, GONE, f"missing key '{name}'") for name in ("schema", "counts", "rejects")),
    *((name, GONE, f"missing key '{name}'") for name in ("files", "sid_space", "version")),
]


@pytest.mark.parametrize(("path", "value", "fault"), FAULTS, ids=[fault for *_, fault in FAULTS])
def test_a_wrong_field_is_named_with_its_value(
    path: str, value: object, fault: str, version: Path
) -> None:
    forge_manifest(version, drop(path) if value is GONE else put(path, value))
    assert_manifest_refused(version, fault)


LONG = "a\n\x1b[31mok: \u202e" + "long" * 25_000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("created_at", LONG), (LONG, 1), ("counts.set_rules", {LONG: 1})),
        *(("schema.attributes.0.values", [LONG, LONG]), ("files.0.shape", [10**4000] * 63)),
    ],
    ids=range(5),
)
def test_a_fault_is_one_short_line_whatever_the_manifest_says(
    path: str, value: object, version: Path
) -> None:
    forge_manifest(version, put(path, value))
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(version)
    assert str(caught.value).isprintable()
    assert len(caught.value.fault) <= MOST_OF_A_FAULT


def test_a_file_that_is_not_listed_is_named(version: Path) -> None:
    forge_manifest(version, lambda fields: fields["files"].pop(0))
    with pytest.raises(SnapshotError, match=r"node_offsets\.npy: not listed in the manifest"):
        load_snapshot(version)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("counts.ads", 9, "ad_ids.npy: shape must be [9] by the counts, the manifest says [8]"),
        ("counts.nodes_per_level.3", 7, "csr_tokens.npy: shape must be [13] by the counts"),
        ("files.0.bytes", 10**12, "bytes, but the manifest says 1000000000000"),
        ("files.0.xxh3_128", "0" * 32, "damaged: its digest is "),
        ("files.10.shape", [-1], "shape must be [any] by the counts, the manifest says [-1]"),
    ],
)
def test_a_manifest_that_contradicts_its_files_names_the_file(
    path: str, value: object, fault: str, version: Path
) -> None:
    forge_manifest(version, put(path, value))
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(version)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"rejects": 0', '"rejects": 0, "rejects": 0', "key 'rejects' occurs twice"),
        ('"file": "ad_ids.npy"', '"file": "ad_ids.npy", "file": "x"', "key 'file' occurs twice"),
        ('"rejects": 0', '"rejects": NaN', "NaN: only integers are expected"),
        ('"rejects": 0', '"rejects": -Infinity', "-Infinity: only integers are expected"),
        ('"rejects": 0', '"rejects": 1e999', "1e999: only integers are expected"),
        ('"rejects": 0', f'"rejects": {"9" * 5000}', "not JSON that we read: Exceeds the limit"),
        ('"rejects": 0', '"rejects": "\\ud800"', "surrogates not allowed"),
        ('"rejects": 0', f'"rejects": {"[" * 100_000}{"]" * 100_000}', "nested too deeply"),
        ('"rejects": 0', '"rejects": 0,', "not JSON that we read: "),
        ("{", "\ufeff{", "not JSON that we read: "),
        ("{", "[{", "not JSON that we read: "),
    ],
    ids=lambda value: value[:30],
)
def test_text_that_is_not_one_plain_object_is_refused(
    old: str, new: str, fault: str, version: Path
) -> None:
    forge_text(version, old, new)
    assert_manifest_refused(version, fault)


def test_a_manifest_that_is_too_long_is_not_read(version: Path) -> None:
    with (version / "MANIFEST.json").open("r+b") as file:
        file.truncate(16 * 2**20 + 1)
    assert_manifest_refused(version, "has 16777217 bytes, at most 16777216 are allowed")


def test_a_newer_format_is_reported_whatever_else_it_changes(version: Path) -> None:
    write_fields(version, {"format": "grace-snapshot", "format_version": 4, "shards": []})
    assert_manifest_refused(version, "written by a newer GRACE (format 4, this one reads 2)")
