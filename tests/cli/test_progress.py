"""Without a terminal, long work prints lines after 5 s and then every 20 s, and short work none."""

import pytest

from grace.cli.progress import progress_bars


def test_a_log_gets_a_line_after_5_seconds_then_every_20_with_the_time_left(
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
        "train: 126 of 1,323, loss 0.095, 5 s, 57 s left",
        "train: 546 of 1,323, loss 0.413, 25 s, 37 s left",
        "train: 966 of 1,323, loss 0.730, 45 s, 17 s left",
    ]


def test_the_lines_of_long_work_are_further_apart_and_count_from_where_it_went_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("grace.cli.progress.time.monotonic", lambda: now)
    with progress_bars() as progress:
        for minute in range(121):
            now = 60.0 * minute
            progress("train", 3000 + minute, 3241)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "train: 3,001 of 3,241, 60 s, 4.0 h left"
    assert lines[19] == "train: 3,020 of 3,241, 1200 s, 3.7 h left"
    assert len(lines) < 70
    assert lines[-1].endswith(" h left")


def test_short_work_is_silent_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("grace.cli.progress.time.monotonic", lambda: now)
    with progress_bars() as progress:
        for second in range(18):
            now = float(second)
            progress("write", second + 1, 18)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_of_80_columns_shows_times_and_details_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress_bars() as progress:
        for step in range(3):
            progress("train", step + 1, 3, "loss 23.652, recall@10 12% of 128 users")
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "128 users" in shown
    assert "…" not in shown
