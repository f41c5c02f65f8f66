"""Runs every fuzz driver of native/tests under the sanitizers, each for --seconds.

    python -m grace.native.fuzz [--out DIR] [--seconds N] [--seed S]

A driver is one file native/tests/fuzz_NAME.cpp with a main() that takes --seconds and --seed. It is
linked with the library's sanitized objects, so it may call functions that Python cannot reach.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from grace.configs.errors import NativeError
from grace.native.build import BUILD_DIR, ROOT, build_program

__all__ = ["main"]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m grace.native.fuzz", description=__doc__)
    parser.add_argument("--out", type=Path, default=BUILD_DIR / "sanitized")
    parser.add_argument("--seconds", type=int, default=20, help="for each driver")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args(arguments)
    drivers = sorted((root / "tests").glob("fuzz_*.cpp"))
    for driver in drivers:
        print(f"{driver.stem}: {chosen.seconds} s from seed {chosen.seed}", flush=True)
        try:
            program = build_program(driver, chosen.out, sanitize=True, root=root)
        except NativeError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        options = ["--seconds", str(chosen.seconds), "--seed", str(chosen.seed)]
        if status := subprocess.run([program, *options], check=False).returncode:
            print(f"error: {driver.stem} failed with status {status}", file=sys.stderr)
            return 1
    print(f"fuzz drivers run: {len(drivers)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
