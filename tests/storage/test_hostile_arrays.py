"""Arrays of wrong contents, dtypes or shapes under right digests: refused by name, or harmless."""

import io
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import Eligibility
from grace.configs.errors import SnapshotError
from grace.index.coverage import coverage, coverage_of_version
from grace.index.forms.components import explain
from grace.index.matchers.derive import derive
from grace.index.matching.ads import NO_ENTITY
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot, write_snapshot
from grace.index.storage.arrays import TABLE, arrays_of, check_arrays, snapshot_of
from grace.index.storage.manifest import parse_manifest
from grace.index.targeting.rules import lists_in
from grace.index.users.user_rows import UserEncoder
from grace.index.verify import require_built, verify_snapshot
from grace.proto.retrieval_pb2 import Filter, RetrieveRequest, Values
from support.decode_cases import admitted_entries
from support.forgery import (
    CARS,
    FLIGHT,
    SCHEMA,
    forge_array,
    forge_bytes,
    forge_manifest,
    read_array_file,
    refusal,
    small_snapshot,
    some,
)
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import examples, random_case

Array = npt.NDArray[Any]
FILES = sorted(arrays_of(small_snapshot()))
Row = tuple[str, Any, Any, str]
ROW = ("name", "at", "value", "fault")

FAULTS: list[Row] = [
    (name, tuple(at) if isinstance(at, list) else at, value, fault)
    for name, at, value, fault in yaml.safe_load(
        Path(__file__).with_name("array_faults.yaml").read_text(encoding="utf-8")
    )
]


def row_id(row: Row) -> str:
    return f"{row[0]}-{row[3]}"


@pytest.mark.parametrize(ROW, FAULTS, ids=map(row_id, FAULTS))
def test_a_wrong_number_is_named_with_its_file_and_place(
    name: str, at: Any, value: Any, fault: str, version: Path
) -> None:
    file = f"{name}.npy"
    array = read_array_file(version, file)
    array[at] = value
    forge_array(version, file, array)
    found_in = {"ad id": "ad_lookup.npy", "the ads have": "alternative_offsets.npy"}
    expected_file = next((f for words, f in found_in.items() if words in fault), file)
    for threads in (1, 2):
        refused = refusal(version, threads=threads)
        assert refused.file == expected_file
        assert fault in refused.fault
    with suppress(SnapshotError):  # a build compares with a version that it has not checked
        coverage_of_version(version.parent, 1)


def test_every_row_of_the_table_has_a_wrong_number_here() -> None:
    kinds = {name.partition(".")[0] for name, *_ in FAULTS}
    alike = {"set_include_offsets": "set_exclude_offsets"}
    stems = {row.name.partition(".")[0] for row in TABLE}
    assert {alike.get(each, each) for each in stems} == {alike.get(each, each) for each in kinds}


# What a load accepts, and no build writes. Bitmasks: NO (0xFFF1), PT, all (0xFFFF); location rules:
# {a, b}, -{c}, none; campaign 7 has ad 1, campaign 63 has ads 0 and 3.
BUILT = (
    RawAd(
        1,
        (0, 0),
        rules={"country": (some("NO"), None), "location": (some("a", "b"), None)},
        entities={"campaign": 63},
    ),
    RawAd(
        2,
        (0, 1),
        rules={"country": (some("PT"), None), "location": (None, some("c"))},
        entities={"campaign": 7},
    ),
    RawAd(3, (0, 1), rules={"audience": (some("x"), some("y")), "category": some("sport")}),
    RawAd(4, (1, 0), rules={"country": (some("NO"), None)}, entities={"campaign": 63}),
    RawAd(5, (1, 1)),
    RawAd(6, (1, 2), rules={"audience_all": (some("x"), some("y"))}),
    RawAd(
        7,
        (1, 2),
        rules={"flight": FLIGHT},
        clauses=({"age": (None, 17.0)}, {"age": (65.0, None), "category": CARS}),
    ),
)
DEEP_FAULTS: list[Row] = [
    ("ad_rule", 0, 1, "ad_rule.npy: entry 0 is 1, but built again 0"),
    ("ad_rule", 1, 3, "ad_rule.npy: entry 1 is 3, but built again 1"),
    ("ad_rule", 4, 0, "ad_rule.npy: entry 5 is 5, but built again 4"),
    ("rule_rows", (4, 0), 0, "ad_rule.npy: entry 4 is 4, but built again 3"),
    (
        "rule_rows",
        (slice(2), slice(3)),
        [[1, 1, 0], [0, 0, 0]],
        "rule_rows.npy: entry 0 is 1, but built again 0",
    ),
    ("alternative_rules", [0, 1], [7, 6], "rule_rows.npy: entry 41 is 0, but built again 2"),
    ("alternative_rules", 1, 6, "ad_rule.npy: entry 6 is 8, but built again 6"),
    ("set_group_values.audience", [0, 1], [1, 0], "audience.npy: entry 0 is 1, but built again 0"),
    ("set_group_values.audience", 1, 0, "audience.npy: entry 3 is 2, but built again 1"),
    ("rule_intervals.age", 1, [1, 0], "no build keeps rule 6: age_max: the range is empty"),
    ("rule_intervals.age", 1, [-np.inf, np.inf], "rule_rows.npy: entry 39 is 1, but built again"),
    ("property_values.category", 0, 0, "rule_rows.npy: entry 47 is 2, but built again 1"),
    ("rule_bitmask_table", 1, 0xFFF1, "rule_rows.npy: entry 6 is 1, but built again 0"),
    ("rule_bitmask_table", 0, 0xFFF0, "no build keeps rule 0: country: the list is empty"),
    ("rule_bitmask_table", 2, 0xFFFE, "rule_bitmask_table.npy: entry 2 is 65534, but built again"),
    ("rule_rows", (0, 1), 1, "rule_rows.npy: entry 1 is 1, but built again 0"),
    ("set_include_offsets.location", 1, 0, "ad_rule.npy: entry 3 is 3, but built again 0"),
    ("set_exclude_values.audience", 0, 0, "no build keeps rule 2: audience_exclude: the"),
    ("set_exclude_values.location", 0, 0, "value_offsets.location.npy: has shape [4], but"),
    ("value_utf8.location", 0, ord("*"), "value_utf8.location.npy: value 0 is the reserved"),
    ("entity_of_ad.campaign", 0, 0, "entity_offsets.campaign.npy: entry 1 is 1, but built"),
    ("entity_of_ad.campaign", 2, 0, "entity_offsets.campaign.npy: entry 1 is 1, but built"),
    ("entity_ads.campaign", 1, 1, "entity_ads.campaign.npy: entry 1 is 1, but built again 0"),
]


@pytest.mark.parametrize(
    ("name", "at", "value", "fault"), DEEP_FAULTS, ids=map(row_id, DEEP_FAULTS)
)
def test_what_no_build_writes_is_named_with_deep_alone(
    name: str, at: Any, value: Any, fault: str, tmp_path: Path
) -> None:
    version = write_snapshot(plain_snapshot(SCHEMA, (2, 3), BUILT), tmp_path)
    verify_snapshot(version, deep=True)
    array = read_array_file(version, f"{name}.npy")
    array[at] = value
    forge_array(version, f"{name}.npy", array)
    verify_snapshot(version)
    with pytest.raises(SnapshotError) as caught:
        verify_snapshot(version, deep=True)
    assert fault in str(caught.value)


def test_rules_in_several_blocks_are_built_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(np.random.default_rng(5), 111)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    for rules in (1, 2, 7):
        bits = rules * 64 * case.schema.words
        monkeypatch.setattr("grace.index.builder.rule_table.BLOCK_BITS", bits)
        require_built(snapshot, threads=2)


@pytest.mark.parametrize("file", FILES)
def test_a_wrong_dtype_is_refused(file: str, version: Path) -> None:
    array = read_array_file(version, file)
    forge_array(version, file, array.astype("<f8" if array.dtype != "<f8" else "<f4"))
    assert f"{file}: dtype must be " in str(refusal(version))
    if array.dtype.itemsize > 1:
        forge_array(version, file, array.astype(array.dtype.newbyteorder(">")))
        assert f"{file}: dtype must be " in str(refusal(version))


@pytest.mark.parametrize("file", FILES)
def test_a_wrong_shape_is_refused(file: str, version: Path) -> None:
    array = read_array_file(version, file)
    flat = array.reshape(-1) if array.ndim > 1 else array[:, None]
    free = any(row.shape == ("any",) for row in TABLE if row.name.split(".")[0] in file.split("."))
    for changed in (np.concatenate([array, array]), array[:-1], array[:0], flat, array[..., None]):
        if changed.shape == array.shape:
            continue  # both are empty
        forge_array(version, file, changed)
        refused = refusal(version)
        if free and changed.ndim == array.ndim:
            assert "the last offset is" in refused.fault
        else:
            assert refused.file == file
            assert "shape must be [" in refused.fault


def npy(array: Array, **changes: object) -> bytes:
    """An .npy file whose header says something else than the array is."""
    fields = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **changes}
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, fields)
    return head.getvalue() + array.tobytes()


RULES = np.zeros(8, np.int32)  # as many numbers as ad_rule.npy has
HEADERS = [
    *(npy(RULES, shape=shape) for shape in ((7,), (2, 4))),
    *(npy(RULES, descr=descr) for descr in ("<u4", "|O")),
    npy(RULES, fortran_order=True),
    b"\x93NUMPY\x02\x00" + b"\x74\0\0\0" + b" " * 116 + RULES.tobytes(),
    b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"[" * 118 + RULES.tobytes(),
]


@pytest.mark.parametrize("content", HEADERS)
def test_a_header_that_contradicts_the_manifest_is_refused(content: bytes, version: Path) -> None:
    forge_bytes(version, "ad_rule.npy", content)
    assert "ad_rule.npy: its .npy header is not version 1.0" in str(refusal(version))


@pytest.mark.parametrize("header", [0, 1, 10, 4097, 70_000])
def test_a_header_of_absurd_length_is_refused(header: int, version: Path) -> None:
    array = read_array_file(version, "ad_rule.npy")
    forge_bytes(version, "ad_rule.npy", b"\x93" * header + array.tobytes())
    with pytest.raises(SnapshotError, match=r"ad_rule\.npy: has \d+ bytes by the manifest, but"):
        load_snapshot(version)


def test_an_array_that_we_do_not_know_is_refused_by_name_before_anything_is_read(
    version: Path,
) -> None:
    """The array may forbid ads. A sparse file of any size costs its author nothing."""
    entry = {"file": "ad_budget.npy", "dtype": "<i8", "shape": [1 << 37], "xxh3_128": "0" * 32}
    with (version / "ad_budget.npy").open("wb") as file:
        file.truncate((1 << 40) + 128)
    forge_manifest(version, lambda f: f["files"].append({**entry, "bytes": (1 << 40) + 128}))
    (version / "ad_ids.npy").unlink()
    for read in (load_snapshot, verify_snapshot):
        with pytest.raises(SnapshotError) as caught:
            read(version)
        assert caught.value.file == "MANIFEST.json"
        assert caught.value.fault == (
            "files: 'ad_budget.npy' is an array that this GRACE does not know, from a newer GRACE "
            "or from elsewhere: upgrade, or build the snapshot again"
        )


def use(snapshot: Snapshot) -> None:
    """Follow every offset and id, as the code that trusts a loaded snapshot does."""
    trie, ads, rules = snapshot.trie, snapshot.ads, snapshot.rules
    sids = trie.sids(np.arange(trie.num_leaves))
    assert [trie.walk(tuple(sid)) for sid in sids.tolist()] == list(
        range(trie.first_leaf, trie.num_entries + 1)
    )
    np.testing.assert_array_equal(ads.ordinals(ads.ad_ids), np.arange(ads.num_ads))
    assert np.isfinite(ads.ad_weight).all()
    named = (part for part in rules.parts if part.has_values)
    for values, part in zip(snapshot.set_values, named, strict=True):
        assert len(values.ids) == len(values)
        for lists in filter(None, map(lists_in, part.columns)):
            for value_id in lists.values:
                values[int(value_id)].encode()
    for entities in snapshot.entities:
        places = entities.of_ad[entities.of_ad != NO_ENTITY]
        np.testing.assert_array_equal(entities.places(entities.ids[places]), places)
        for first, last in pairwise(entities.offsets.tolist()):
            assert len(ads.ad_ids[entities.ads[first:last]]) > 0
    coverage(snapshot)
    users = UserEncoder(snapshot.schema, snapshot.set_values).encode(USERS)
    visible = [
        [
            all(each.passes for each in explain(snapshot, rule, user))
            for rule in ads.ad_rule.tolist()
        ]
        for user in USERS
    ]
    leaves = np.tile(np.arange(trie.num_leaves, dtype=np.int32), len(USERS))
    ends, scores = np.arange(len(USERS) + 1) * trie.num_leaves, np.zeros(len(leaves), np.float32)
    matched = ExactMatcher(snapshot, 1).match(users, ends, leaves, scores, ads.num_ads)
    found = np.split(matched.ad_ids, matched.offsets[1:-1])
    assert [set(each) for each in found] == [set(ads.ad_ids[each]) for each in visible]
    for text in ("exact", "union", "dynamic", "static:3,4,2"):
        derived = derive(snapshot, Eligibility.of(text), 1)
        for request, of_ads in enumerate(visible):
            admitted = admitted_entries(derived, users, request)[-trie.num_leaves :]
            needed = np.logical_or.reduceat(of_ads, ads.ad_offsets[:-1])
            assert not (needed & ~admitted).any()
            assert text != "exact" or (needed == admitted).all()


AT = 1_767_225_600_001
USER = {"country": ["NO"], "location": ["no/oslo", "us/tx"], "audience": ["runners", "café"]}
USERS = [
    RetrieveRequest(at=AT),
    RetrieveRequest(
        at=AT,
        user={"age": Values(number=17.0)} | {n: Values(values=v) for n, v in USER.items()},
        filters={"category": Filter(any_of=["cars"], none_of=["sport"])},
    ),
]


def corrupt(array: Array, data: st.DataObject) -> Array:
    """Replace a few numbers by extremes, neighbours or anything, or swap two of them."""
    flat = array.copy().reshape(-1)
    for _ in range(data.draw(st.integers(1, 3)) if len(flat) else 0):
        at = data.draw(st.integers(0, len(flat) - 1))
        if data.draw(st.booleans()):
            other = data.draw(st.integers(0, len(flat) - 1))
            flat[[at, other]] = flat[[other, at]]
        elif flat.dtype.kind == "f":
            flat[at] = data.draw(st.floats(width=32))
        else:
            limits = np.iinfo(flat.dtype)
            least, most = int(limits.min), int(limits.max)
            near = st.integers(max(int(flat[at]) - 2, least), min(int(flat[at]) + 2, most))
            extreme = st.sampled_from([least, most])
            flat[at] = data.draw(extreme | near | st.integers(least, most))
    return flat.reshape(array.shape)


@given(data=st.data())
@examples(150)
def test_what_the_checks_accept_is_safe_to_use(intact: Path, data: st.DataObject) -> None:
    """The steps are those of a load after the digests."""
    manifest = parse_manifest((intact / "MANIFEST.json").read_bytes())
    arrays = {file: read_array_file(intact, file) for file in FILES}
    for file in data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique=True)):
        arrays[file] = corrupt(arrays[file], data)
    try:
        check_arrays(manifest, arrays, threads=1)
    except SnapshotError:
        return
    use(snapshot_of(manifest, arrays))
