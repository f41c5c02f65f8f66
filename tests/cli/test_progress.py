"""Without a terminal, long work prints a line every 20 s and short work prints nothing."""

import pytest

from grace.cli.progress import progress_bars


def test_a_log_gets_a_line_every_20_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("grace.cli.progress.time.monotonic", lambda: now)
    with progress_bars() as progress:
        for second in range(1, 64):
            now = 100.0 + second
            progress("train", 21 * second, 1323, f"loss {second / 63:.3f}")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "train: 420 of 1,323, loss 0.317, 20 s",
        "train: 840 of 1,323, loss 0.635, 40 s",
        "train: 1,260 of 1,323, loss 0.952, 60 s",
    ]


def test_short_work_is_silent_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        progress("write", 7, 7)
    assert capsys.readouterr() == ("", "")
