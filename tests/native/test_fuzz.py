"""The fuzz runner: it runs every driver of native/tests, and one that fails fails it."""

from pathlib import Path

import pytest

from grace.native.fuzz import main

pytestmark = pytest.mark.subprocess

LIBRARY = 'int grace_length() { return 63; }\nconst char* digest = "GRACE_SOURCE_DIGEST";\n'
DRIVER = """
#include <cstdlib>
#include <cstring>
int grace_length();
int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[1], "--seconds") || std::strcmp(argv[3], "--seed")) return 2;
  int* values = new int[grace_length()]();
  int read = values[std::atoi(argv[4])];
  delete[] values;
  return read;
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("src", "include", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "src" / "library.cpp").write_text(LIBRARY)
    return tmp_path


def run(root: Path, seed: int) -> int:
    return main(["--out", str(root / "out"), "--seconds", "1", "--seed", str(seed)], root)


def test_no_driver_is_no_failure(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, 7) == 0
    assert capsys.readouterr().out == "fuzz drivers run: 0\n"


def test_a_driver_runs_with_the_librarys_objects_and_fails_on_what_a_sanitizer_finds(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "tests" / "fuzz_values.cpp").write_text(DRIVER)
    assert run(root, 62) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "fuzz drivers run: 1"
    assert run(root, 63) == 1
    shown = capfd.readouterr().err
    assert "heap-buffer-overflow" in shown
    assert shown.splitlines()[-1].startswith("error: fuzz_values failed with status")


def test_a_driver_that_does_not_compile_is_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "tests" / "fuzz_broken.cpp").write_text("int main() { return unknown; }\n")
    assert run(root, 7) == 1
    assert "unknown" in capsys.readouterr().err
