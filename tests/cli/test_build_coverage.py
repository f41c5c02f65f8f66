"""A build whose ads lost their rules: what it prints and ends with, and how it is published."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.in_process import invoke_grace


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    done = invoke_grace("synth", "--preset", "tiny", "--sids", "333", "--out", folder)
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def root(catalogue: Path, tmp_path: Path) -> Path:
    """A root with one version, of all rules."""
    code, out, err = build(catalogue, tmp_path / "root", catalogue / "ads.parquet")
    assert (code, err) == (0, "")
    assert f"{share(catalogue / 'ads.parquet'):.1%}" in out
    assert "change" not in out, "the first version has nothing to compare with"
    return tmp_path / "root"


def build(targeting: Path, root: Path, ads: Path, *options: str) -> tuple[int, str, str]:
    inputs = ("--ads", ads, "--targeting", targeting / "targeting.yaml", "--root", root)
    done = invoke_grace("build", *inputs, *options)
    return done.exit_code, done.stdout, done.stderr


def half_without_country(catalogue: Path, folder: Path) -> Path:
    table = pq.read_table(catalogue / "ads.parquet")
    for name in ("country", "country_exclude"):
        lists = table[name].to_pylist()
        column = pa.array(lists[: len(lists) // 2] + [None] * (len(lists) - len(lists) // 2))
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, column.cast(pa.list_(pa.string())))
    pq.write_table(table, folder / "half.parquet")
    return folder / "half.parquet"


def share(ads: Path) -> float:
    rows = pq.read_table(ads)
    both = zip(rows["country"].to_pylist(), rows["country_exclude"].to_pylist(), strict=True)
    return sum(bool(include or exclude) for include, exclude in both) / len(rows)


def row_of(name: str, shown: str) -> list[str]:
    """Return the numbers of a name in a printed table."""
    (cells,) = (line.split()[1:] for line in shown.splitlines() if line.split()[:1] == [name])
    return cells


def current(root: Path) -> int:
    return int((root / "CURRENT").read_text())


def test_half_of_the_rules_lost_is_written_named_and_not_published(
    catalogue: Path, root: Path, tmp_path: Path
) -> None:
    half = half_without_country(catalogue, tmp_path)
    code, out, err = build(catalogue, root, half)
    assert (code, current(root)) == (1, 1)
    before, after = share(catalogue / "ads.parquet"), share(half)
    assert "version 2 (not published)" in out
    assert "version 1   change, points" in out
    fallen = f"{(after - before) * 100:+.1f}"
    assert row_of("country", out) == [f"{after:.1%}", f"{before:.1%}", fallen]
    assert err == (
        f"error: country: {before:.1%} of the ads had a rule in version 1, now {after:.1%} have "
        "one; version 2 is written, but not published: if this is right, `grace publish "
        f"{root} 2`, or build with a higher --max-coverage-drop than 0.2\n"
    )
    code, out, _ = build(catalogue, root, half, "--json")
    coverage = json.loads(out)["coverage"]
    assert (code, coverage["version_before"]) == (1, 1)
    assert coverage["falls"] == [{"name": "country", "before": before, "after": after}]
    found = json.loads(invoke_grace("inspect", root, "--version", "3", "--json").stdout)
    assert found["coverage"].items() <= coverage.items()
    assert invoke_grace("publish", root, "2").exit_code == 0
    assert current(root) == 2


def test_a_name_that_the_schema_or_the_table_lost_is_named(
    catalogue: Path, root: Path, tmp_path: Path
) -> None:
    ads = tmp_path / "ads.parquet"
    table = pq.read_table(catalogue / "ads.parquet")
    pq.write_table(table.drop_columns(["audience", "audience_exclude"]), ads)
    code, _, err = build(catalogue, root, ads, "--without", "audience")
    assert (code, current(root)) == (1, 1)
    assert "audience: 10.9% of the ads had a rule in version 1, now 0.0% have one" in err
    text = (catalogue / "targeting.yaml").read_text()
    lines = [line for line in text.splitlines() if "audience" not in line]
    (tmp_path / "targeting.yaml").write_text("\n".join(lines))
    code, out, err = build(tmp_path, root, ads)
    assert code == 1
    assert "audience: 10.9% of the ads had a rule in version 1, now the schema has no such" in err
    assert row_of("audience", out) == ["-", "10.9%", "-10.9"]


def test_a_build_over_a_damaged_current_publishes_only_if_every_fall_is_allowed(
    catalogue: Path, root: Path
) -> None:
    (root / "CURRENT").write_text("junk")
    code, _, err = build(catalogue, root, catalogue / "ads.parquet")
    assert (code, (root / "CURRENT").read_text()) == (1, "junk")
    last = err.splitlines()[-1]
    assert last.startswith(
        f"error: cannot compare the rules with those of the current version: {root}"
    )
    assert last.endswith(f"`grace publish {root} 2`, or build with --max-coverage-drop 1")
    more = ("--max-coverage-drop", "1")
    assert build(catalogue, root, catalogue / "ads.parquet", *more)[0] == 0
    assert current(root) == 3
