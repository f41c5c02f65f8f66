"""Without a terminal, long work prints a line every 20 s, and short work none."""

from collections.abc import Iterable

import pytest

from grace.cli.progress import progress_bars


def lines_of(
    steps: Iterable[tuple[float, int, str]],
    total: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """Report steps, each at its time, and return the lines on standard error."""
    now = 100.0
    monkeypatch.setattr("grace.cli.progress.time.monotonic", lambda: now)
    with progress_bars() as progress:
        for seconds, done, latest in steps:
            now = 100.0 + seconds
            progress("train", done, total, latest)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_log_gets_a_line_every_20_seconds_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [(second, 21 * second, f"loss {second / 63:.3f}") for second in range(1, 64)]
    assert lines_of(steps, 1323, monkeypatch, capsys) == [
        "train: 420 of 1,323, loss 0.317, 19 s, 43 s left",
        "train: 840 of 1,323, loss 0.635, 39 s, 23 s left",
        "train: 1,260 of 1,323, loss 0.952, 59 s, 3 s left",
    ]
    short = [(second, second + 1, "") for second in range(18)]
    assert lines_of(short, 18, monkeypatch, capsys) == []
