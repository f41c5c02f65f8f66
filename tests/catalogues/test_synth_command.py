"""`grace synth`: what it writes, prints and refuses."""

from pathlib import Path

import pytest

from support.in_process import invoke_grace


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
