"""The `grace` command: its table, help, errors and exit codes; `grace doctor`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import typer

from grace.cli.main import COMMANDS, report_errors
from grace.cli.progress import progress_bars
from grace.configs.errors import ConfigError, SnapshotError
from grace.native.build import code_flags
from grace.native.loader import load_library
from support.command import run_python, without_torch
from support.in_process import invoke_grace
from support.pretended_gpus import pretend_gpus


def test_help_lists_every_command_in_the_tables_order() -> None:
    done = invoke_grace("--help")
    assert (done.exit_code, done.stderr) == (0, "")
    listed = done.stdout.partition("\nCommands:\n")[2]
    assert re.findall(r"^  (\S+)", listed, re.MULTILINE) == list(COMMANDS)


def test_a_folder_that_may_not_be_entered_is_a_fault_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, which may enter any folder, so `access` replaces the real answer."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    (tmp_path / "loop").symlink_to("loop")
    for command in ("verify", "inspect"):
        for folder in (tmp_path, tmp_path / "loop", tmp_path / ("x" * 300)):
            done = invoke_grace(command, folder)
            assert (done.exit_code, done.stdout) == (2, "")
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"error: {folder}: ")
            assert line.endswith(("name another folder", "build a version into it"))


@pytest.mark.subprocess
def test_help_loads_no_heavy_library() -> None:
    code = """
import sys
from contextlib import suppress
from grace.cli.main import COMMANDS, app
for arguments in ([], *([name] for name in COMMANDS)):
    with suppress(SystemExit):
        app([*arguments, "--help"])
heavy = {"numpy", "pyarrow", "torch", "grpc", "xxhash", "yaml"}
print("loaded", sorted(heavy & set(sys.modules)))
"""
    done = run_python(code)
    assert done.stdout.splitlines()[-1] == "loaded []", done.stderr


@pytest.mark.subprocess
def test_a_command_refuses_its_output_before_it_imports_torch(tmp_path: Path) -> None:
    """The import takes seconds, and reading tables may take minutes."""
    full, file = tmp_path / "full", tmp_path / "full" / "file"
    codes = tmp_path / "full" / "codes.index.json"
    full.mkdir()
    file.write_text("")
    t5 = ("--sid-space", "x", "--vocab-sizes", "7,7")
    refused = {
        ("train", "--data", tmp_path, "--out", full): f"{full}: is already there; choose a new",
        ("train", "--data", tmp_path, "--out", file): f"{file}: is already there; choose a new",
        ("import-t5", tmp_path, "--out", full, *t5): f"{full}: is already there; choose a new",
        ("import-sids", codes, "--out", file, "--sid-space", "x"): "is already there",
    }
    codes.touch()
    for said, words in zip(without_torch([*refused]), refused.values(), strict=True):
        assert said.startswith("error: ")
        assert words in said
        assert len(said.splitlines()) == 1


def test_the_version_is_the_distributions() -> None:
    assert invoke_grace("--version").stdout == f"grace {version('grace-serving')}\n"


AGAIN = "; build or publish another version"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a.yaml:3: no"), 2, "error: a.yaml:3: no"),
        (SnapshotError("ad_ids.npy", "x"), 1, f"error: ad_ids.npy: x{AGAIN}"),
        (FileNotFoundError(2, "No such file", "x/gone"), 1, "error: x/gone: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_for_the_user_is_one_line_and_its_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        report_errors(failing)()
    assert caught.value.exit_code == code
    assert capsys.readouterr() == ("", f"{line}\n")


def test_a_programming_error_keeps_its_traceback() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        report_errors(broken)()


def test_doctor_reports_the_same_for_people_and_for_scripts() -> None:
    for_scripts = invoke_grace("doctor", "--json")
    report = json.loads(for_scripts.stdout)
    assert report["ok"] is True
    assert for_scripts.exit_code == 0
    for_people = invoke_grace("doctor")
    assert for_people.exit_code == 0
    for finding in report["findings"]:
        assert finding["name"] in for_people.stdout
        assert finding["status"] in ("ok", "note")


def test_doctor_names_a_missing_native_library_and_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "libgrace_cpu.so")
    monkeypatch.setenv("GRACE_NATIVE_LIBRARY", missing)
    load_library.cache_clear()
    done = invoke_grace("doctor", "--json")
    assert done.exit_code == 1
    (fault,) = (f for f in json.loads(done.stdout)["findings"] if f["status"] == "fault")
    assert fault["name"] == "native library"
    assert fault["found"] == f"{missing}: native library is missing"
    assert fault["remedy"] == "run `python -m grace.native.build`"


def test_doctor_says_which_gpus_torch_finds_and_which_are_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRACE_CUDA_LIBRARY", str(tmp_path / "kernels.so"))
    (tmp_path / "kernels.txt").write_text("; ".join(code_flags("80", "86", "90a", "100")))
    expected = {
        (9, 0): "; runs sm_90a; precisions fp32, bf16, fp8",
        (8, 9): "; runs sm_86; precisions fp32, bf16",
        (10, 3): "; runs sm_100; precisions fp32, bf16",
        (12, 0): "; runs portable code; precisions fp32, bf16",
        (7, 5): "",
    }
    pretend_gpus(monkeypatch, len(expected))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", [*expected].__getitem__)
    findings = json.loads(invoke_grace("doctor", "--json").stdout)["findings"]
    gpus = [each for each in findings if each["name"].startswith("cuda:")]
    for found, ((major, minor), more) in zip(gpus, expected.items(), strict=True):
        assert found["found"] == f"GPU, compute capability {major}.{minor}{more}"
        assert found["status"] == ("ok" if more else "note")
    assert gpus[-1]["remedy"] == "compute capability 8.0 is needed: use another GPU, or device cpu"


@pytest.mark.subprocess
def test_a_closed_pipe_is_not_a_traceback() -> None:
    grace = Path(sys.executable).with_name("grace")
    done = subprocess.run(
        f"{grace} --help | true", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


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
