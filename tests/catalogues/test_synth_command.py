"""`grace synth`: what it writes, prints and refuses."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grace.index.tables.data_folder import ADS_FILE
from support.in_process import invoke_grace


@pytest.mark.parametrize(("preset", "requests"), [("small", 512), ("paper", 64)])
def test_json_has_the_numbers_of_the_folder(tmp_path: Path, preset: str, requests: int) -> None:
    done = invoke_grace(
        *("synth", "--preset", preset, "--sids", "1111", "--seed", "7"),
        *("--out", tmp_path, "--json"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["sids"], report["requests"]) == (1111, requests)
    assert report["sid_space"].endswith(f"{preset}-7-1111")
    assert report["ads"] == pq.read_metadata(tmp_path / ADS_FILE).num_rows


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset", "huge"], "--preset huge is unknown; known: tiny, small, demo"),
        (["--sids", "7"], "--sids 7 is outside 64 to"),
        (["--seed", "-1"], "--seed -1 is negative"),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    done = invoke_grace("synth", "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {named}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
