"""A damaged file is refused by name, or builds what it says."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, build
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.verify import verify_snapshot
from support.builds import silent, write_schema
from support.strategies import examples

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")),), (TargetSet("location", 64, 3, 64),), hash_seed=7
)


def build_it(folder: Path, path: Path) -> None:
    spec = BuildSpec(
        ads=(path,),
        targeting=write_schema(folder / "targeting.yaml", SCHEMA),
        root=folder / "snapshots",
        sid_space="plain-1",
        vocab_sizes=(3, 2),
        max_rejects=1000,
        threads=2,
        batch_rows=4,
    )
    build(spec, silent)


GOOD = {
    "ad_id": pa.array([4, 5, 6]),
    "sid": pa.array([[0, 1], [1, 0], [2, 1]], pa.list_(pa.uint16())),
    "ad_weight": pa.array([1.0, 2.0, 3.0]),
    "country": pa.array([["US"], None, []], pa.list_(pa.string())),
    "location_exclude": pa.array([["a"], None, []], pa.list_(pa.string())),
}


@examples(20)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
    compression=st.sampled_from(["none", "snappy"]),
)
def test_a_damaged_file_is_refused_by_name_or_what_it_says_is_built(
    changes: list[tuple[float, int]], kept: float, compression: str
) -> None:
    with TemporaryDirectory() as folder:
        check_damaged(Path(folder), changes, kept, compression)


def check_damaged(
    folder: Path, changes: list[tuple[float, int]], kept: float, compression: str
) -> None:
    path = folder / "ads.parquet"
    pq.write_table(pa.table(GOOD), path, compression=compression, row_group_size=2)
    content = bytearray(path.read_bytes())
    for place, byte in changes:
        content[int(place * len(content))] = byte
    path.write_bytes(bytes(content[: int(kept * len(content))]))
    try:
        build_it(folder, path)
    except InputError as error:
        assert "ads.parquet" in str(error) or "nothing to build" in str(error)
        assert len(str(error).splitlines()) == 1
    else:
        verify_snapshot(folder / "snapshots", deep=True)
