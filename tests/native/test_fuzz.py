"""The fuzz drivers: foreign bytes at native speed, and what the GPU computes with integers.

`make sanitize` runs them with the sanitized library in FUZZ_SANITIZED, for FUZZ_SECONDS each.
"""

import os
import subprocess
from pathlib import Path

import pytest

from grace.native.build import BUILD_DIR, ROOT, build_program

DRIVERS = sorted((ROOT / "tests").glob("fuzz_*.cpp"))
SANITIZED = os.environ.get("FUZZ_SANITIZED")
SECONDS = os.environ.get("FUZZ_SECONDS", "0.3")
SEED = os.environ.get("FUZZ_SEED", "7")


@pytest.mark.subprocess
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda path: path.stem)
def test_a_driver_finds_nothing(driver: Path) -> None:
    folder = Path(SANITIZED) if SANITIZED else BUILD_DIR
    program = build_program(driver, folder, sanitize=SANITIZED is not None)
    command = [str(program), "--seconds", SECONDS, "--seed", SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    program.unlink()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{driver.stem}: ")
