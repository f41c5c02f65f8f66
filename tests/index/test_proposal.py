"""What `grace init` proposes: any text survives its YAML; separators, names and ids are found."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.configs.yaml_loader import parse_yaml
from grace.index.proposal.propose import propose
from grace.index.proposal.yaml_text import quoted, tables_yaml, targeting_yaml
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import load_schema
from support.builds import silent
from support.strategies import examples

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@examples(100)
@given(
    st.one_of(TEXTS, st.sampled_from([".5", "1e3", "0x1f", "~", "null", "TRUE", "a: b", "x #y"]))
)
def test_a_quoted_text_is_read_as_that_text(text: str) -> None:
    assert parse_yaml(f"x: {quoted(text)}  # why", "x") == {"x": text}
    assert parse_yaml(f"x: [{quoted(text)}, {quoted(text)}]", "x") == {"x": [text, text]}


@examples(40)
@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.lists(TEXTS, min_size=1))
def test_any_names_and_values_make_a_folder_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("shop")
    columns = {name: pa.array([[value] for value in values]) for name in names if name != "id"}
    ids = pa.array(range(len(values)))
    pq.write_table(pa.table({**columns, "id": ids}), folder / "ads.parquet")
    proposal = propose([str(folder / "ads.parquet")], (), "id", silent)
    columns_part, sids, rest = tables_yaml(proposal, folder).partition("\nsids:")
    left_out = re.compile(r"(?m)^# (?=  |attributes:|sets:)")  # becomes rules without `# `
    tables = left_out.sub("", columns_part) + sids + rest
    (folder / "tables.yaml").write_text(tables, "utf-8")
    targeting = left_out.sub("", targeting_yaml(proposal))
    (folder / "targeting.yaml").write_text(targeting, "utf-8")
    data, schema = read_data_folder(folder), load_schema(folder / "targeting.yaml")
    ours = {each.name: each.column for each in proposal.decisions if each.name}
    assert {name: data.ads.theirs(name) for name in ours} == ours
    stated = set(values) - {"*"}
    for attribute in schema.attributes:
        assert set(attribute.values) == stated
    ruled = {data.ads.theirs(name).removesuffix("_exclude") for name in schema.names}
    assert ruled | {"id"} <= {name.removesuffix("_exclude") for name in [*names, "id"]}


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["US|CA", "US", "CA"], "|"),
        (["US|CA"], "|"),
        (["US;CA", "CA"], ";"),
        (['"US,CA"', "CA", "US"], ","),
        (["US", "CA"], None),
        (['"1,5"', '"2,5"', "5"], None),
        (['"red, warm"', '"blue, cold"'], None),
        (["a||b", "a"], None),
    ],
)
def test_a_separator_is_found_by_the_values_that_it_makes(
    tmp_path: Path, cells: list[str], separator: str | None
) -> None:
    lines = ["id,x", *(f"{at},{cell}" for at, cell in enumerate(cells))]
    (tmp_path / "ads.csv").write_text("\n".join(lines))
    assert propose([str(tmp_path / "ads.csv")], (), None, silent).list_separator == separator


def test_ids_of_any_number_of_batches_are_compared(tmp_path: Path) -> None:
    """Integers turn into texts late, the repeated id is far away, and so is the other country."""
    ids = [*map(str, range(70_000)), "x1", "x2"]
    for name, last in (("good", "x3,NO"), ("bad", "17,NO")):
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(["id,country", *(f"{each},US" for each in ids), last]))
    good = propose([str(tmp_path / "good.csv")], (), None, silent)
    assert (good.rows, good.ids_are_integers) == (70_003, False)
    assert "[NO, US]" in targeting_yaml(good)
    with pytest.raises(InputError, match="repeats '17', in rows 18 and 70003"):
        propose([str(tmp_path / "bad.csv")], (), None, silent)
