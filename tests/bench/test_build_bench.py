"""The measurement of builds runs and names what it measured; no test checks its times."""

import json
from pathlib import Path

import pytest

from grace.bench.build_bench import main
from grace.catalogues.paper import PaperSpec, write_paper_folder

pytestmark = pytest.mark.subprocess


def silent(*_: object) -> None:
    pass


def test_every_kind_of_matchers_has_a_row_that_adds_up(tmp_path: Path) -> None:
    out = tmp_path / "results" / "build.json"
    main(["--sids", "2333", "--out", str(out)])
    result = json.loads(out.read_text())
    assert sorted(result) == ["command", "commit", "machine", "rows"]
    assert "python -m grace.bench.build_bench --sids 2333" in result["command"]
    rows = result["rows"]
    assert [row["matchers"] for row in rows] == ["union", "static", "dynamic"]
    for row in rows:
        assert (row["sids"], row["sid_space"]) == (2333, "paper-1-2333")
        assert row["sids"] < row["ads"]
        assert sum(row["step_s"].values()) < row["build_s"]
        per_million = row["build_s"] / row["ads"] * 1e6
        assert row["build_s_per_million_ads"] == pytest.approx(per_million, rel=0.02)
        assert 0 < row["load_verify_s"] <= row["load_verify_most_s"]
        assert row["peak_gb"] > row["snapshot_gb"] > 0
    union, static, dynamic = rows
    assert static["snapshot_gb"] > union["snapshot_gb"]
    assert (union["options"], static["options"]) == ("", "--k 64,64,32,8")
    assert dynamic["options"] == "--k-max 32 --fill-target 0.25"


def test_every_size_has_its_rows_and_data_names_a_catalogue_to_use_and_keep(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "build.json"
    written = write_paper_folder(
        PaperSpec(1111, seed=7), data, threads=1, force=False, progress=silent
    )
    before = {file.name: file.stat().st_mtime_ns for file in data.iterdir()}
    what = ["--sids", "1111", "1222", "--seed", "7", "--matchers", "cd"]
    main([*what, "--data", str(data), "--out", str(out)])
    result = json.loads(out.read_text())
    given, made = result["rows"]
    assert (given["sid_space"], given["ads"]) == ("paper-7-1111", written.ads)
    assert made["sid_space"] == "paper-7-1222"
    assert str(data) not in result["command"]
    assert {file.name: file.stat().st_mtime_ns for file in data.iterdir()} == before


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        (["--sids", "1113"], "holds paper-1-1111; the rows are of paper-1-1113"),
        (["--preset", "small", "--sids", "1111"], "the rows are of synth-small-1-1111"),
    ],
)
def test_data_with_another_catalogue_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: list[str], complaint: str
) -> None:
    write_paper_folder(PaperSpec(1111), tmp_path, threads=1, force=False, progress=silent)
    with pytest.raises(SystemExit):
        main([*what, "--data", str(tmp_path)])
    assert complaint in capsys.readouterr().err


def test_a_folder_without_a_catalogue_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--sids", "1111", "--data", str(tmp_path)])
    assert "holds no catalogue" in capsys.readouterr().err
