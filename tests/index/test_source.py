"""Tables that cannot be read rightly are refused before a row is read, with what to fix."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, Sharding, build
from grace.index.builder.batches import AdsReading, BatchReader
from grace.index.builder.source import ExpectedColumns, open_ads
from grace.index.storage import load_snapshot, versions
from grace.index.tables.data_folder import TableSource
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.builds import silent, write_schema

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")),), (TargetSet("location", 256, 4, 64),), hash_seed=7
)
TEXTS = pa.list_(pa.string())


def spec_of(folder: Path, columns: dict[str, Any], schema: TargetingSchema = SCHEMA) -> BuildSpec:
    given = columns.get("ad_id")
    rows = 2 if given is None else len(given)
    good = {
        "ad_id": pa.array([1, 2]),
        "sid": pa.array([[0, 1], [1, 0]], pa.list_(pa.uint16())),
        "country": pa.array([None, ["US"]] * (rows // 2), TEXTS),
        "location_exclude": pa.array([["a"], []] * (rows // 2), TEXTS),
    }
    merged = {name: array for name, array in (good | columns).items() if array is not None}
    pq.write_table(pa.table(merged), folder / "ads.parquet")
    return BuildSpec(
        ads=(folder / "ads.parquet",),
        targeting=write_schema(folder / "targeting.yaml", schema),
        root=folder / "snapshots",
        sid_space="s",
        vocab_sizes=(2, 2),
    )


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "no ad_id": ({"ad_id": None}, "column 'ad_id' is missing"),
    "no sid": ({"sid": None}, "column 'sid' is missing"),
    "unknown rule": ({"city": pa.array([["a"], ["b"]], TEXTS)}, "'city' looks like a targeting"),
    "unknown view": (
        {"city": pa.array([["a"], ["b"]], pa.list_view(pa.string()))},
        "'city' looks like a targeting",
    ),
    "unknown map": (
        {"city": pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))},
        "'city' looks like a targeting",
    ),
    "unknown exclude": ({"city_exclude": pa.array(["a", "b"])}, "'city_exclude' looks like"),
    "include in capitals": (
        {
            "country": None,
            "country_exclude": pa.array(["NO", "US"]),
            "COUNTRY": pa.array(["US"] * 2),
        },
        "'COUNTRY' would not be read: it differs from 'country' only in case or blanks",
    ),
    "include with a blank": (
        {"location ": pa.array(["a", "b"])},
        "'location ' would not be read: it differs from 'location' only in case or blanks",
    ),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_a_column_that_cannot_be_enforced_is_refused_by_name(tmp_path: Path, name: str) -> None:
    columns, message = BAD_COLUMNS[name]
    with pytest.raises(InputError) as caught:
        build(spec_of(tmp_path, columns), silent)
    assert message in str(caught.value)
    assert "ads.parquet" in str(caught.value)


def test_other_columns_are_ignored_and_named(tmp_path: Path) -> None:
    report = build(spec_of(tmp_path, {"title": pa.array(["a", "b"])}), silent)
    assert report.ignored_columns == ("title",)


WITH_CAMPAIGNS = replace(SCHEMA, entities=("campaign",))


EMPTY: dict[str, dict[str, Any]] = {
    "country": {"country": pa.nulls(2)},
    "location": {"location": pa.array([None, None], TEXTS), "location_exclude": None},
    "location of empty lists": {"location_exclude": pa.array([[], []], TEXTS)},
    "campaign": {"campaign": pa.nulls(2)},
}


@pytest.mark.parametrize("column", EMPTY)
@pytest.mark.parametrize("in_shards", [False, True])
def test_a_column_without_a_rule_in_any_row_is_refused_unless_the_build_goes_without(
    tmp_path: Path, column: str, in_shards: bool
) -> None:
    def build_it(spec: BuildSpec) -> BuildReport:
        return build(spec, silent, sharding=Sharding(2)) if in_shards else build(spec, silent)

    name = column.partition(" ")[0]
    columns = {"campaign": pa.array([7, 7])} | EMPTY[column]
    spec = spec_of(tmp_path, columns, WITH_CAMPAIGNS)
    with pytest.raises(InputError, match=f"column '{name}': in no row .* --without {name}"):
        build_it(spec)
    assert versions(spec.root) == ()
    assert build_it(replace(spec, without=(name,))).without == (name,)


@pytest.mark.parametrize("name", ["country", "location"])
def test_a_rule_that_neither_column_states_is_refused_unless_the_build_goes_without(
    tmp_path: Path, name: str
) -> None:
    columns = {name: None, f"{name}_exclude": None}
    spec = spec_of(tmp_path, columns)
    fault = f"columns '{name}' and '{name}_exclude' are missing, a rule .* --without {name}"
    with pytest.raises(InputError, match=fault):
        build(spec, silent)
    assert build(replace(spec, without=(name,)), silent).without == (name,)


def test_a_build_does_not_go_without_rules_that_the_table_has(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    with pytest.raises(InputError, match=r"--without country: but .* has rules on it"):
        build(replace(spec, without=("country",)), silent)


def test_a_rule_of_another_type_is_refused_unless_the_build_goes_without(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"country": pa.array([1.5, 2.5])})
    with pytest.raises(InputError, match="column 'country' must be list<string>, or one text"):
        build(spec, silent)
    assert build(replace(spec, without=("country",)), silent).without == ("country",)


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        (None, "column 'campaign' is missing, an entity of the targeting schema; add it, name its"),
        (pa.array(["7", "9"]), "must be int64, got string; name a file under entity_ids in tables"),
        (pa.array([7.0, 9.0]), "must be int64, got double; cast the column to int64, or build"),
        (pa.array([[7], [9]]), "must be int64, got list"),
        (pa.array([True, False]), "must be int64, got bool"),
    ],
    ids=["none", "text", "float", "list", "bool"],
)
def test_a_missing_or_odd_entity_is_refused_unless_the_build_goes_without(
    tmp_path: Path, column: pa.Array | None, fault: str
) -> None:
    spec = spec_of(tmp_path, {"campaign": column}, WITH_CAMPAIGNS)
    with pytest.raises(InputError) as caught:
        build(spec, silent)
    assert fault in str(caught.value)
    assert "--without campaign" in str(caught.value)
    report = build(replace(spec, without=("campaign",)), silent)
    assert (report.without, report.ignored_columns) == (("campaign",), ())
    snapshot = load_snapshot(report.path)
    assert snapshot.schema == WITH_CAMPAIGNS
    assert [len(entities) for entities in snapshot.entities] == [0]


def test_a_build_cannot_go_without_what_the_schema_does_not_have(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"campaign": pa.array([1, 2])}, WITH_CAMPAIGNS)
    fault = "--without brand: not an attribute, .* which has: country, location, campaign"
    with pytest.raises(InputError, match=fault):
        build(replace(spec, without=("brand",)), silent)


def test_missing_foreign_and_repeated_files_are_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    gone, empty, text = tmp_path / "gone.parquet", tmp_path / "empty", tmp_path / "text.parquet"
    empty.mkdir()
    text.write_text("ad_id,sid\n1,2\n")
    for ads, message in (
        ((gone,), "no such file or folder"),
        ((empty,), r"no table in this folder: none ends in \*\.parquet"),
        ((text,), "not a readable Parquet file"),
        (spec.ads * 2, "given twice"),
    ):
        with pytest.raises(InputError, match=message):
            build(replace(spec, ads=ads), silent)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    columns = {"ad_id": pa.array([], pa.int64()), "sid": pa.array([], pa.list_(pa.uint16()))}
    with pytest.raises(InputError, match="no rows"):
        build(spec_of(tmp_path, columns), silent)


def test_a_column_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"title": pa.array(["a", "b"])})
    pq.write_table(pq.read_table(spec.ads[0]), spec.ads[0], store_schema=False)
    file = Path(spec.ads[0])
    file.write_bytes(file.read_bytes().replace(b"title", b"t\xfftle"))
    with pytest.raises(InputError, match=r"ads\.parquet: not a readable Parquet file"):
        build(spec, silent)


def test_a_footer_that_disagrees_with_its_row_groups_is_refused(tmp_path: Path) -> None:
    rows = 1000
    columns = {"ad_id": pa.array(range(rows)), "sid": pa.array([[0, 1]] * rows)}
    no_rules = {"country": None, "location_exclude": None}
    spec = spec_of(tmp_path, columns | no_rules, TargetingSchema((), (), 7))
    # Thrift's compact protocol: field 3, an i64 of 1,000 as a zigzag number, then field 4, a list.
    right, wrong = b"\x16\xd0\x0f\x19", b"\x16\xcf\x0f\x19"
    file = Path(spec.ads[0])
    content = file.read_bytes()
    assert content.count(right) == 1
    file.write_bytes(content.replace(right, wrong))
    with pytest.raises(InputError, match="row groups hold 1000 rows, its footer says -1000"):
        build(spec, silent)


def test_names_with_dots_are_columns_of_their_own(tmp_path: Path) -> None:
    """Arrow selects columns by path, in which a dot leads into a nested one."""
    plain = {name: pa.array(["a", "b"]) for name in ("sid.x", "ad_id.element", "location.list")}
    report = build(spec_of(tmp_path, plain), silent)
    assert (report.ads, report.ignored_columns) == (2, tuple(sorted(plain)))


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """The footer was read before: what it promised must be what comes."""
    spec = spec_of(tmp_path, {})
    source = open_ads(TableSource((str(spec.ads[0]),)), ExpectedColumns(SCHEMA))

    def read() -> None:
        list(BatchReader(source, AdsReading(SCHEMA, (2, 2))))

    read()
    table = pq.read_table(spec.ads[0])
    for changed, message in (
        (table.slice(0, 1), "1 rows read, it had 2 before"),
        (pa.concat_tables([table, table]), "grew while it was read"),
        (table.append_column("x", pa.array([1, 2])), "its columns changed"),
    ):
        pq.write_table(changed, spec.ads[0])
        with pytest.raises(InputError, match=message):
            read()


def test_files_below_a_folder_or_spelt_otherwise_are_not_passed_over(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    for other in ("dt=1/more.parquet", "more.PARQUET"):
        folder = tmp_path / other.replace("/", "-")
        (folder / other).parent.mkdir(parents=True)
        content = Path(spec.ads[0]).read_bytes()
        (folder / "ads.parquet").write_bytes(content)
        (folder / other).write_bytes(content)
        with pytest.raises(InputError, match="directly in it"):
            build(replace(spec, ads=(folder,)), silent)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sid_space": None, "vocab_sizes": None}, r"--sid-space NAME .* and --vocab-sizes 512"),
        ({"sid_space": None}, "--sid-space"),
        ({"vocab_sizes": None}, "--vocab-sizes"),
        ({"sid_space": ""}, "1 to 255 printable characters"),
        ({"sid_space": "a\nb"}, "1 to 255 printable characters"),
        ({"vocab_sizes": ()}, "1 to 16 tokens per SID"),
        ({"vocab_sizes": (2, 70_000)}, "each must be 1 to 65536"),
    ],
    ids=str,
)
def test_a_sid_space_and_vocabulary_that_no_file_and_no_option_gives_are_asked_for(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(replace(spec_of(tmp_path, {}), **changes), silent)


def test_files_of_one_build_must_agree_on_the_sid_space(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    table = pq.read_table(spec.ads[0])
    for name in ("a", "b"):
        marked = table.replace_schema_metadata({"grace.sid_space": name})
        pq.write_table(marked, tmp_path / f"{name}.parquet")
    both = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"grace\.sid_space is 'b', but 'a'"):
        build(replace(spec, ads=both, sid_space=None), silent)


def test_a_version_that_is_not_above_the_latest_is_refused_before_the_work(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, {})
    build(replace(spec, version=9), silent)
    with pytest.raises(InputError, match="version 9 is not above the latest, 9"):
        build(replace(spec, version=9), silent)
