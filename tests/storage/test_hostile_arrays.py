"""Arrays of wrong contents, dtypes or shapes under right digests: refused by name, or harmless."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import SnapshotError
from grace.index.matchers.eligible_nodes import eligible_nodes
from grace.index.matchers.exact_lists import ExactLists
from grace.index.matchers.modes import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot, verify_snapshot
from grace.index.storage.layout import arrays_of, expected_arrays, snapshot_of
from grace.index.storage.manifest import parse_manifest
from grace.index.storage.structure import check_structure
from grace.index.users.user_rows import UserEncoder
from support.forgery import (
    forge_array,
    forge_bytes,
    forge_manifest,
    read_array_file,
    small_snapshot,
)
from support.strategies import examples
from support.wrong_snapshots import Array, corrupt

FILES = sorted(arrays_of(small_snapshot()))


def put(at: int | tuple[int, ...], value: float) -> Callable[[Array], None]:
    def change(array: Array) -> None:
        array[at] = value

    return change


def set_bit(row: int, word: int, bit: int) -> Callable[[Array], None]:
    def change(array: Array) -> None:
        array[row, word] |= np.uint64(1 << bit)

    return change


def clear_row(array: Array) -> None:
    array[0] = 0


EXACT, UNION = MatcherMode.EXACT, MatcherMode.UNION
STATIC, DYNAMIC = MatcherMode.STATIC, MatcherMode.DYNAMIC
# The small catalogue: nodes per level 1, 2, 4, 6; 8 ads in 7 rules; attributes of 8 bits.
# In the k-way modes: static ids 3, 4 and 2 per entry; 13 dynamic bitmask ids.
UNION_FAULTS: list[tuple[str, Callable[[Array], None], str]] = [
    ("node_offsets", put(0, 1), "offset 0 is 1, expected 0"),
    ("node_offsets", put(2, -1), "offset 2 is -1, below the one before it, 2"),
    ("node_offsets", put(2, 99), "offset 3 is 6, below the one before it, 99"),
    ("node_offsets", put(1, 0), "node 0 has no child: offsets 0 and 1 are both 0"),
    ("node_offsets", put(-1, 13), "the last offset is 13, but there are 12 child entries"),
    ("node_offsets", put(1, 3), "offset 1 is 3, expected 2: there the children of level 0 end"),
    ("csr_tokens", put(0, 4), "entry 0 is token 4, but level 1 has 4 tokens"),
    ("csr_tokens", put(-1, 65535), "entry 11 is token 65535, but level 3 has 9 tokens"),
    ("csr_tokens", put(1, 0), "entry 1 has token 0, not above the one before it, 0"),
    ("ad_offsets", put(1, 0), "leaf 0 has no ad: offsets 0 and 1 are both 0"),
    ("ad_offsets", put(-1, 2**62), f"the last offset is {2**62}, but there are 8 ad entries"),
    ("ad_ids", put(0, -7), "ad 0 has id -7, expected none below 0"),
    ("ad_ids", put(1, 7), "ad 1 has id 7, not above the one before it, 7 of the same SID"),
    ("ad_ids", put(2, 111), "entry 6 leads to ad id 111, not above the one before it, 111"),
    ("ad_rule", put(3, 99), "ad 3 has rule 99, but there are 7 rules"),
    ("ad_rule", put(3, -1), "ad 3 has rule -1, but there are 7 rules"),
    ("ad_weight", put(2, np.nan), "ad 2 has weight nan, expected a finite number"),
    ("ad_weight", put(2, -np.inf), "ad 2 has weight -inf, expected a finite number"),
    ("ad_lookup", put(0, 8), "entry 0 names ad 8, but there are 8 ads"),
    ("ad_lookup", put(7, -1), "entry 7 names ad -1, but there are 8 ads"),
    ("ad_lookup", put(1, 3), "entry 1 leads to ad id 5, not above the one before it, 5"),
    ("rule_bitmask", put(0, 4), "rule 0 has bitmask 4, but there are 4 bitmasks"),
    ("rule_bitmask_table", set_bit(1, 0, 8), "row 1 has a bit set beyond the 8 bits"),
    ("rule_sets", put((2, 1), 3), "rule 2 has audience rule 3, but there are 3 audience rules"),
    ("rule_sets", put((6, 0), -9), "rule 6 has location rule -9, but there are 4 location rules"),
    ("bitmask_index", put(3, 0), "entry 3 has row 0, but level 2 has rows 1 to 3"),
    ("bitmask_index", put(0, -1), "entry 0 has row -1, but level 1 has rows 0 to 0"),
    ("bitmask_table", set_bit(5, 0, 63), "row 5 has a bit set beyond the 8 bits"),
    ("bloom_index.location", put(11, 99), "entry 11 has row 99, but level 3 has rows 4 to 5"),
    ("bloom_star.location", put(0, 2), "row 0 has flag 2, expected 0 or 1"),
    ("bloom_star.location", put(4, 1), "row 4 has flag 1, but its Bloom row says 0"),
    ("set_include_offsets.location", put(-1, 9), "the last offset is 9, but there are 3 value"),
    ("set_include_values.location", put(1, 3), "entry 1 is value 3, but there are 3 values"),
    ("set_include_values.location", put(0, 1), "entry 1 has value 1, not above"),
    ("set_exclude_values.audience", put(0, -1), "entry 0 is value -1, but there are 3 values"),
    ("set_exclude_offsets.audience", put(1, 9), "offset 2 is 1, below the one before it, 9"),
    ("value_offsets.audience", put(1, 99), "offset 2 is 13, below the one before it, 99"),
    ("value_utf8.audience", put(3, 0x80), r"value 0 is b'caf\x80\xa9', expected UTF-8"),
    ("value_utf8.audience", put(0, 0x7A), r"value 1 is b'cyclists', not above the one before it"),
    ("entity_ids.campaign", put(0, -1), "entity 0 has id -1, expected none below 0"),
    ("entity_ids.campaign", put(1, 9), "entity 1 has id 9, not above the one before it, 9"),
    ("entity_of_ad.campaign", put(3, 3), "ad 3 has entity 3, but there are 3 entities"),
    ("entity_of_ad.campaign", put(3, -2), "ad 3 has entity -2, but there are 3 entities"),
    ("entity_offsets.campaign", put(0, -1), "offset 0 is -1, expected 0"),
    ("entity_offsets.campaign", put(1, 0), "entity 0 has no ad: offsets 0 and 1 are both 0"),
    ("entity_offsets.campaign", put(1, 99), "offset 2 is 5, below the one before it, 99"),
    ("entity_offsets.campaign", put(-1, 7), "the last offset is 7, but there are 6 ad entries"),
    ("entity_ads.campaign", put(0, 8), "entry 0 names ad 8, but there are 8 ads"),
    ("entity_ads.advertiser", put(0, -1), "entry 0 names ad -1, but there are 8 ads"),
    ("entity_ads.campaign", put(1, 0), "entry 1 has ad 0, not above the one before it, 0"),
]
EXACT_FAULTS: list[tuple[str, Callable[[Array], None], str]] = [
    ("leaf_rule_offsets", put(0, 1), "offset 0 is 1, expected 0"),
    ("leaf_rule_offsets", put(1, 0), "leaf 0 has no rule: offsets 0 and 1 are both 0"),
    ("leaf_rule_offsets", put(2, 99), "offset 3 is 4, below the one before it, 99"),
    ("leaf_rule_offsets", put(-1, 8), "the last offset is 8, but there are 7 rule entries"),
    ("leaf_rules", put(0, -1), "entry 0 is rule -1, but there are 7 rules"),
    ("leaf_rules", put(6, 7), "entry 6 is rule 7, but there are 7 rules"),
    ("leaf_rules", put(1, 0), "entry 1 has rule 0, not above the one before it, 0"),
    ("leaf_rules", put(6, 1), "leaf 5 lacks rule 6 of its ad "),
    ("include_posting_offsets.location", put(0, -1), "offset 0 is -1, expected 0"),
    ("include_posting_offsets.location", put(1, 2**40), "below the one before it, 1099511627776"),
    ("include_posting_offsets.audience", put(-1, 9), "the last offset is 9, but there are 3 set"),
    ("include_postings.location", put(0, 4), "entry 0 is set rule 4, but there are 4 set rules"),
    ("include_postings.location", put(2, 0), "entry 2 has set rule 0, not above the one before"),
    ("exclude_posting_offsets.audience", put(-1, 0), "is 0, below the one before it, 1"),
    ("exclude_postings.audience", put(0, -1), "entry 0 is set rule -1, but there are 3 set rules"),
]
STATIC_FAULTS: list[tuple[str, Callable[[Array], None], str]] = [
    ("bitmask_index", put(5, 3), "entry 5 has row 3, but level 1 has rows 0 to 2"),
    ("bitmask_index", put(6, 0), "entry 6 has row 0, but level 2 has rows 3 to 6"),
    ("bitmask_index", put(33, 99), "entry 33 has row 99, but level 3 has rows 7 to 10"),
    ("bloom_index.location", put(0, -1), "entry 0 has row -1, but level 1 has rows 0 to"),
    ("bloom_star.location", put(2, 1), "row 2 has flag 1, but its Bloom row says 0"),
]
DYNAMIC_FAULTS: list[tuple[str, Callable[[Array], None], str]] = [
    ("bitmask_index", put(3, 1), "entry 3 has row 1, but level 2 has rows 2 to 4"),
    ("bitmask_index", put(12, 2**31 - 1), "has row 2147483647, but level 3 has rows"),
    ("bitmask_offsets", put(0, 1), "offset 0 is 1, expected 0"),
    ("bitmask_offsets", put(1, 0), "entry 0 has no partition: offsets 0 and 1 are both"),
    ("bitmask_offsets", put(4, 99), "offset 5 is 6, below the one before it, 99"),
    ("bitmask_offsets", put(4, -1), "offset 4 is -1, below the one before it, 4"),
    ("bitmask_offsets", put(-1, 14), "last offset is 14, but there are 13 partition"),
    ("bloom_offsets.audience", put(3, 2), "entry 2 has no partition: offsets 2 and 3"),
]
FAULTS = [
    *((EXACT, *fault) for fault in EXACT_FAULTS),
    *((UNION, *fault) for fault in UNION_FAULTS),
    *((STATIC, *fault) for fault in STATIC_FAULTS),
    *((DYNAMIC, *fault) for fault in DYNAMIC_FAULTS),
]


@pytest.mark.parametrize(
    ("mode", "name", "change", "fault"),
    FAULTS,
    ids=[f"{mode.value}-{name}-{fault}" for mode, name, _, fault in FAULTS],
)
def test_a_wrong_number_is_named_with_its_file_and_place(
    mode: MatcherMode,
    name: str,
    change: Callable[[Array], None],
    fault: str,
    version_of: Callable[[MatcherMode], Path],
) -> None:
    version, file = version_of(mode), f"{name}.npy"
    array = read_array_file(version, file)
    change(array)
    forge_array(version, file, array)
    expected_file = "ad_lookup.npy" if "leads to" in fault else file
    for threads in (1, 2):
        with pytest.raises(SnapshotError) as caught:
            load_snapshot(version, threads=threads)
        assert caught.value.file == expected_file
        assert fault in caught.value.fault


def test_more_partitions_than_the_manifest_allows_are_refused(
    version_of: Callable[[MatcherMode], Path],
) -> None:
    version = version_of(DYNAMIC)
    forge_manifest(version, lambda fields: fields["matchers"]["dynamic"].update(k_max=1))
    with pytest.raises(SnapshotError, match="entry 0 has 2 partitions, expected 1 at most"):
        load_snapshot(version)


@pytest.mark.parametrize("mode", [STATIC, DYNAMIC], ids=lambda mode: mode.value)
@pytest.mark.parametrize("file", ["bitmask_index.npy", "bloom_index.location.npy"])
def test_ids_too_many_or_too_few_are_refused(
    mode: MatcherMode, file: str, version_of: Callable[[MatcherMode], Path]
) -> None:
    version = version_of(mode)
    array = read_array_file(version, file)
    for changed in (array[:-1], np.append(array, array[-1:]), array[:0]):
        forge_array(version, file, changed)
        expected = "shape must be" if mode is STATIC else "the last offset is"
        with pytest.raises(SnapshotError, match=expected):
            load_snapshot(version)


@pytest.mark.parametrize("file", FILES)
def test_a_wrong_dtype_is_refused(file: str, version: Path) -> None:
    array = read_array_file(version, file)
    forge_array(version, file, array.astype("<f8" if array.dtype != "<f8" else "<i8"))
    with pytest.raises(SnapshotError, match=f"{file}: dtype must be "):
        load_snapshot(version)
    if array.dtype.itemsize > 1:
        forge_array(version, file, array.astype(array.dtype.newbyteorder(">")))
        with pytest.raises(SnapshotError, match="is not a little-endian number"):
            load_snapshot(version)


@pytest.mark.parametrize("file", FILES)
def test_a_wrong_shape_is_refused(file: str, version: Path) -> None:
    array = read_array_file(version, file)
    flat = array.reshape(-1) if array.ndim > 1 else array[:, None]
    free = file.startswith(("set_include_values", "set_exclude_values", "value_utf8", "entity_ads"))
    for changed in (np.concatenate([array, array]), array[:-1], array[:0], flat, array[..., None]):
        forge_array(version, file, changed)
        with pytest.raises(SnapshotError) as caught:
            load_snapshot(version)
        if free and changed.ndim == array.ndim:
            assert "the last offset is" in caught.value.fault
        else:
            assert caught.value.file == file
            assert "shape must be [" in caught.value.fault


def npy(array: Array, **changes: object) -> bytes:
    """An .npy file whose header says something else than the array is."""
    fields = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **changes}
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, fields)
    return head.getvalue() + array.tobytes()


RULES = np.zeros(8, np.int32)  # as many numbers as ad_rule.npy has
HEADERS = [
    *(npy(RULES, shape=shape) for shape in ((7,), (2, 4), (2**62,), (-8,))),
    *(npy(RULES, descr=descr) for descr in ("<u4", "|O", ">i4", [("a", "<i4")])),
    npy(RULES, fortran_order=True),
    b"\x93NUMPY\x02\x00" + b"\x74\0\0\0" + b" " * 116 + RULES.tobytes(),
    b"\x93NUMPY\x01\x00" + b"\x76\0" + b"(" * 118 + RULES.tobytes(),
    b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"[" * 118 + RULES.tobytes(),
    b"PK\x03\x04" + bytes(124) + RULES.tobytes(),
    bytes(128) + RULES.tobytes(),
]


@pytest.mark.parametrize("content", HEADERS)
def test_a_header_that_contradicts_the_manifest_is_refused(content: bytes, version: Path) -> None:
    forge_bytes(version, "ad_rule.npy", content)
    with pytest.raises(SnapshotError, match=r"ad_rule\.npy: its \.npy header is not version 1\.0"):
        load_snapshot(version)


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
        assert caught.value.file == "ad_budget.npy"
        assert caught.value.fault == (
            "an array that this GRACE does not know, from a newer GRACE or from elsewhere: "
            "upgrade, or build the snapshot again"
        )


def use(snapshot: Snapshot) -> None:
    """Follows every offset and id, as the code that trusts a loaded snapshot does."""
    trie, ads, rules = snapshot.trie, snapshot.ads, snapshot.rules
    sids = trie.sids(np.arange(trie.num_leaves))
    assert [trie.walk(tuple(sid)) for sid in sids.tolist()] == list(
        range(trie.first_leaf, trie.num_nodes)
    )
    np.testing.assert_array_equal(ads.ordinals(ads.ad_ids), np.arange(ads.num_ads))
    rules.bitmask_table[rules.bitmask[ads.ad_rule]]
    for i, (values, set_rules) in enumerate(zip(snapshot.set_values, rules.sets, strict=True)):
        assert len(values.ids) == len(values)
        set_rules.include_offsets[rules.set_rules[:, i] + 1]
        for value_id in (*set_rules.include_values, *set_rules.exclude_values):
            values[value_id].encode()
    for entities in snapshot.entities:
        of_ads = [entities.ids[place] for place in entities.of_ad if place >= 0]
        np.testing.assert_array_equal(entities.places(of_ads), entities.of_ad[entities.of_ad >= 0])
        for place in range(len(entities)):
            first, last = entities.offsets[place : place + 2]
            assert len(ads.ad_ids[entities.ads[first:last]]) > 0
    if snapshot.exact is not None:
        use_lists(snapshot, snapshot.exact)
        return
    assert snapshot.matchers is not None
    for rows in (snapshot.matchers.bitmask, *(bloom.rows for bloom in snapshot.matchers.blooms)):
        rows.table[rows.index]
        for entry in range(trie.num_entries):
            begin, end = rows.id_offsets(trie, entry, entry + 1)
            assert 0 <= begin < end <= len(rows.index)


def use_lists(snapshot: Snapshot, lists: ExactLists) -> None:
    users = [{}, {"country": ["NO"], "location": ["no/oslo", "us/tx"], "audience": ["runners"]}]
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode(users)
    for request in range(2):
        assert len(eligible_nodes(snapshot, lists, rows, request)) == snapshot.trie.num_nodes


@pytest.mark.parametrize("mode", [EXACT, UNION, STATIC, DYNAMIC], ids=lambda mode: mode.value)
@given(data=st.data())
@examples(20)
def test_corrupt_arrays_are_refused_or_safe_to_use(
    intact_of: dict[MatcherMode, Path], mode: MatcherMode, data: st.DataObject
) -> None:
    """The steps of a load after the digests."""
    manifest = parse_manifest((intact_of[mode] / "MANIFEST.json").read_bytes())
    arrays = {file: read_array_file(intact_of[mode], file) for file in expected_arrays(manifest)}
    files = sorted(arrays)
    for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        arrays[file] = corrupt(arrays[file], data)
    snapshot = snapshot_of(manifest, arrays)
    try:
        check_structure(snapshot, threads=1)
    except SnapshotError as error:
        assert error.file in files
    else:
        use(snapshot)
