"""A manifest may say anything under a right digest: it is refused in words, or it is true."""

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from grace.configs.errors import MOST_OF_A_FAULT
from grace.index.matching.exact import ExactMatcher
from grace.index.storage import load_snapshot
from grace.index.users.user_rows import UserEncoder
from support.forgery import Fields, forge_manifest, forge_text, read_fields, refusal, write_fields
from support.in_process import invoke_grace
from support.strategies import examples

Change = Callable[[Fields], Any]


def assert_manifest_refused(version: Path, fault: str) -> None:
    refused = refusal(version)
    assert refused.file == "MANIFEST.json"
    assert fault in refused.fault
    assert "\n" not in refused.fault


def put(path: str, value: object) -> Change:
    """Sets the field at a path such as counts.rule_rows.location or files.0.bytes."""

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
    *yaml.safe_load(Path(__file__).with_name("manifest_faults.yaml").read_text(encoding="utf-8")),
    ("format_version", 10**400, "written by a newer GRACE (format 1000"),
    ("version", "٠" * 20, "version: expected 20 digits"),
    ("files.0.file", "a" * 300 + ".npy", "aaa... is an array that this GRACE does not know"),
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
        *(("created_at", LONG), (LONG, 1), ("counts.rule_rows", {LONG: 1})),
        *(("schema.attributes.0.values", [LONG, LONG]), ("files.0.shape", [10**4000] * 63)),
    ],
    ids=range(5),
)
def test_a_fault_is_one_short_line_whatever_the_manifest_says(
    path: str, value: object, version: Path
) -> None:
    forge_manifest(version, put(path, value))
    refused = refusal(version)
    assert str(refused).isprintable()
    assert len(refused.fault) <= MOST_OF_A_FAULT


def test_a_file_that_is_not_listed_is_named(version: Path) -> None:
    forge_manifest(version, lambda fields: fields["files"].pop(0))
    assert "node_offsets.npy: not listed in the manifest" in str(refusal(version))


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
    assert fault in str(refusal(version))


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
    assert_manifest_refused(version, "written by a newer GRACE (format 4, this one reads 3)")


_HUGE = st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**30])
_TEXTS = st.text(max_size=5) | st.sampled_from(
    ["2026-02-30T12:00:00Z", "\n", "\x1b[31m", "x" * 9999]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | _HUGE | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def mutations(draw: st.DrawFn, fields: Fields) -> None:
    """Replace, remove or repeat one to three values of a manifest."""
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(_places(fields))))
        if draw(st.booleans()):
            parent[key] = draw(_VALUES)
        elif draw(st.booleans()):
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, parent[key])
        else:
            parent[draw(_TEXTS)] = parent[key]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every list and mapping, with each of its keys."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    here = [(value, key) for key in keys]
    return [*here, *(place for key in keys for place in _places(value[key]))]


MOST_BYTES = 64 << 20
"""A small catalogue takes little memory, whatever its manifest says."""


def assert_ok_or_one_line(done: Result) -> None:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1)
    if done.exit_code == 1:
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert line.isprintable()
        assert len(line) <= 1100


def assert_can_be_served(version: Path) -> None:
    snapshot = load_snapshot(version)
    ExactMatcher(snapshot, 1)
    UserEncoder(snapshot.schema, snapshot.set_values).read([b""], 16, now=0)


@examples(15)
@given(data=st.data())
def test_a_mutated_manifest_is_fine_or_one_line(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated"
    shutil.copytree(intact, version := folder / intact.name, dirs_exist_ok=True)
    fields = read_fields(intact)
    data.draw(mutations(fields))
    write_fields(version, fields)
    tracemalloc.start()
    verified = invoke_grace("verify", version, *data.draw(st.sampled_from([[], ["--deep"]])))
    inspected = invoke_grace("inspect", version)
    if verified.exit_code == 0:
        assert_can_be_served(version)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert_ok_or_one_line(verified)
    assert_ok_or_one_line(inspected)
