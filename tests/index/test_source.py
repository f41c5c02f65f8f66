"""Tables that cannot be read rightly are refused before a row is read, with what to fix."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, build
from grace.index.builder.batches import AdsReading, BatchReader
from grace.index.builder.source import ExpectedColumns, open_ads
from grace.index.storage import load_snapshot, versions
from grace.index.tables.data_folder import DataFolder, TableSource, read_data_folder
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.builds import silent, write_schema

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")),), (TargetSet("location", 256, 4, 64),), 7, ("campaign",)
)
TEXTS = pa.list_(pa.string())


GOOD = {
    "ad_id": pa.array([1, 2]),
    "sid": pa.array([[0, 1], [1, 0]], pa.list_(pa.uint16())),
    "country": pa.array([None, ["US"]], TEXTS),
    "location_exclude": pa.array([["a"], []], TEXTS),
    "campaign": pa.array([7, 7]),
}


def spec_of(folder: Path, columns: dict[str, Any]) -> BuildSpec:
    merged = {name: array for name, array in (GOOD | columns).items() if array is not None}
    pq.write_table(pa.table(merged), folder / "ads.parquet")
    write_schema(folder / "targeting.yaml", SCHEMA)
    return BuildSpec(
        read_data_folder(folder), root=folder / "snapshots", sid_space="s", vocab_sizes=(2, 2)
    )


class Fault(NamedTuple):
    """Columns in place of the good ones, and the fault. `without` is the remedy, if there is one"""

    columns: dict[str, Any]
    fault: str
    without: str = ""


UNREAD = "'{}' would not be read: it differs from '{}' only in case or blanks"
NO_ROW = "column '{0}': in no row .* --without {0}"
LISTS = pa.array([["a"], ["b"]], TEXTS)
FAULTS = {
    "no ad_id": Fault({"ad_id": None}, "column 'ad_id' is missing"),
    "no sid": Fault({"sid": None}, "column 'sid' is missing"),
    "no rows": Fault({name: x[:0] for name, x in GOOD.items()}, "the ads table has no rows"),
    "unknown rule": Fault({"city": LISTS}, "'city' looks like a targeting"),
    "unknown exclude": Fault({"city_exclude": pa.array(["a", "b"])}, "'city_exclude' looks like"),
    "capitals": Fault(
        {"country": None, "country_exclude": pa.array(["NO", "US"]), "COUNTRY": LISTS},
        UNREAD.format("COUNTRY", "country"),
    ),
    "a blank": Fault({"location ": pa.array(["a", "b"])}, UNREAD.format("location ", "location")),
    "no value": Fault({"country": pa.nulls(2)}, NO_ROW.format("country"), "country"),
    "no list": Fault(
        {"location": pa.nulls(2, TEXTS), "location_exclude": None},
        NO_ROW.format("location"),
        "location",
    ),
    "no campaign": Fault({"campaign": pa.nulls(2)}, NO_ROW.format("campaign"), "campaign"),
    "neither column": Fault(
        {"country": None},
        "columns 'country' and 'country_exclude' are missing, a rule .* --without country",
        "country",
    ),
    "a rule of floats": Fault(
        {"country": pa.array([1.5, 2.5])},
        "column 'country' must be list<string>, or one text",
        "country",
    ),
    "no column campaign": Fault(
        {"campaign": None},
        "column 'campaign' is missing, an entity of the targeting schema; add it, name its .*"
        "--without campaign",
        "campaign",
    ),
    "campaign of text": Fault(
        {"campaign": pa.array(["7", "9"])},
        "must be int64, got string; name a file under entity_ids.*--without campaign",
        "campaign",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_column_that_cannot_be_enforced_is_refused_unless_the_build_goes_without(
    tmp_path: Path, name: str
) -> None:
    columns, fault, without = FAULTS[name]
    spec = spec_of(tmp_path, columns)
    with pytest.raises(InputError, match=rf"ads\.parquet: .*{fault}"):
        build(spec, silent)
    assert versions(spec.root) == ()
    if without:
        report = build(replace(spec, without=(without,)), silent)
        assert (report.without, report.ignored_columns) == ((without,), ())
        assert load_snapshot(report.path).schema == SCHEMA


def test_a_build_goes_without_no_rules_that_the_table_has_and_no_unknown_name(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, {})
    maps = {"brand": tmp_path / "brands.parquet"}
    for faulty, fault in (
        (replace(spec, without=("country",)), r"--without country: but .* has rules on it"),
        (replace(spec, without=("brand",)), "--without brand: not a name or entity .*, campaign"),
        (
            replace(spec, data=replace(spec.data, entity_ids=maps)),
            "entity_ids: brand: not an entity of the targeting",
        ),
    ):
        with pytest.raises(InputError, match=fault):
            build(faulty, silent)


def test_a_column_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"title": pa.array(["a", "b"])})
    file = tmp_path / "ads.parquet"
    pq.write_table(pq.read_table(file), file, store_schema=False)
    file.write_bytes(file.read_bytes().replace(b"title", b"t\xfftle"))
    with pytest.raises(InputError, match=r"ads\.parquet: not a readable Parquet file"):
        build(spec, silent)


def test_a_footer_that_disagrees_with_its_row_groups_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    file = tmp_path / "ads.parquet"
    pq.write_table(pa.table({"ad_id": range(1000), "sid": [[0, 1]] * 1000}), file)
    # Thrift's compact protocol: field 3, an i64 of 1,000 as a zigzag number, then field 4, a list.
    right, wrong = b"\x16\xd0\x0f\x19", b"\x16\xcf\x0f\x19"
    content = file.read_bytes()
    assert content.count(right) == 1
    file.write_bytes(content.replace(right, wrong))
    with pytest.raises(InputError, match="row groups hold 1000 rows, its footer says -1000"):
        build(replace(spec, without=("country", "location", "campaign")), silent)


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """The footer was read before: what it promised must be what comes."""
    spec = spec_of(tmp_path, {})
    source = open_ads(spec.data.ads, ExpectedColumns(SCHEMA))

    def read() -> None:
        list(BatchReader(source, AdsReading(SCHEMA, (2, 2))))

    read()
    table = pq.read_table(tmp_path / "ads.parquet")
    for changed, message in (
        (table.slice(0, 1), "1 rows read, it had 2 before"),
        (pa.concat_tables([table, table]), "grew while it was read"),
        (table.append_column("x", pa.array([1, 2])), "its columns changed"),
    ):
        pq.write_table(changed, tmp_path / "ads.parquet")
        with pytest.raises(InputError, match=message):
            read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sid_space": None, "vocab_sizes": None}, r"--sid-space NAME .* and --vocab-sizes 512"),
        ({"vocab_sizes": ()}, "1 to 16 tokens per SID"),
        ({"threads": 1025}, "--threads 1025: give 1 to 1024"),
        ({"updates_watermark": -1}, "updates watermark -1: must be 0 to"),
    ],
    ids=str,
)
def test_a_build_that_cannot_end_well_is_refused_before_the_work(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(replace(spec_of(tmp_path, {}), **changes), silent)


def test_files_of_one_build_must_agree_on_the_sid_space(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {})
    table = pq.read_table(tmp_path / "ads.parquet")
    for name in ("a", "b"):
        marked = table.replace_schema_metadata({"grace.sid_space": name})
        pq.write_table(marked, tmp_path / f"{name}.parquet")
    both = TableSource((str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")))
    with pytest.raises(InputError, match=r"grace\.sid_space is 'b', but 'a'"):
        build(replace(spec, data=DataFolder(tmp_path, both), sid_space=None), silent)
