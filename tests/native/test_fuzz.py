"""The fuzz drivers: foreign bytes at native speed, and what the GPU computes with integers.

`make sanitize` runs them with the sanitized library in FUZZ_SANITIZED, for FUZZ_SECONDS each.
"""

import os
import subprocess
from pathlib import Path

import pytest

from grace.native.build import BUILD_DIR, CPU, ROOT, build, find_compiler, read_record

DRIVERS = sorted((ROOT / "tests").glob("fuzz_*.cpp"))
SANITIZED = os.environ.get("FUZZ_SANITIZED")
SECONDS = os.environ.get("FUZZ_SECONDS", "0.3")
SEED = os.environ.get("FUZZ_SEED", "7")


def build_program(source: Path, out: Path) -> Path:
    """Build an executable from `source` and the library's objects, next to the library."""
    build(out, sanitize=SANITIZED is not None)
    record = read_record(out)
    assert record is not None
    program = out / source.stem
    objects = map(str, sorted((out / CPU.objects).glob("*.o")))
    flags = (*record.flags, "-O1", f"-I{ROOT / 'include'}")  # the work is in the objects
    command = [*find_compiler(), *flags, str(source), *objects, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.subprocess
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda path: path.stem)
def test_a_driver_finds_nothing(driver: Path) -> None:
    folder = Path(SANITIZED) if SANITIZED else BUILD_DIR
    program = build_program(driver, folder)
    command = [str(program), "--seconds", SECONDS, "--seed", SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    program.unlink()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{driver.stem}: ")
