"""`grace demo` shows the whole way, and its claims hold."""

import re
from pathlib import Path

import pytest

from support.command import run_grace

pytestmark = pytest.mark.subprocess

WAYS = ("the catalogue alone", "targeting")


def shares_after(heading: str, text: str) -> list[int]:
    """Percent of generated ads that are for the user."""
    return [int(share) for share in re.findall(rf"{heading}.*\((\d+)%\)", text)]


def test_the_demo_matches_users_and_says_why_and_why_not(tmp_path: Path) -> None:
    done = run_grace("demo", "--out", tmp_path, "--users", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\d)\. User ", done.stdout, re.MULTILINE) == ["3", "4", "5"]
    assert "may lead to an eligible ad" in done.stdout
    assert "not returned:" in done.stdout
    shoes = done.stdout.partition("3. User running-shoes")[2].partition("\n4. User")[0]
    returned = re.findall(r"^    \d\. (.*)", shoes, re.MULTILINE)
    assert sum("running shoes" in title for title in returned) >= 3, "near what she clicked"
    assert re.search(r"1\. .+ \(ad \d+, p = 0\.\d+\)\n +\S", done.stdout)
    alone, targeted = (shares_after(f"decoding with {way}:", done.stdout) for way in WAYS)
    assert len(alone) == len(targeted) == 3
    assert sum(targeted) > 1.2 * sum(alone), "targeting while decoding finds more for the user"
    assert (tmp_path / "snapshots" / "CURRENT").exists()


def test_the_demo_replaces_nobodys_files_unasked(tmp_path: Path) -> None:
    own = tmp_path / "ads.parquet"
    own.write_text("mine")
    done = run_grace("demo", "--out", tmp_path)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert own.read_text() == "mine"
    assert run_grace("demo", "--out", tmp_path, "--users", "1", "--force").returncode == 0


def test_without_a_folder_the_demo_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    done = run_grace("demo", "--users", "1", env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
