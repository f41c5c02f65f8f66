"""Count the lines of code of each part. `make check` prints them, and a test holds their budgets.

A change earns what it adds by what it removes: before a new reader, checker or list of the same
things, look for the table that a row would extend. Lower a budget when a change removes lines.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

PARTS = {
    "product": ("proto configs native index kernels model server client cli docker", 51_000),
    "bench and catalogues": ("bench catalogues", 14_500),
    "tests": ("tests native/tests", 40_000),
}
"""The folders and the budget of each part."""

SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh"}


def lines_of_parts(root: Path) -> Mapping[str, int]:
    """Count all lines but those of generated stubs and of files that a build made."""
    part_of = {folder: part for part, (folders, _) in PARTS.items() for folder in folders.split()}
    lines: Counter[str] = Counter()
    for folder in {path.split("/")[0] for path in part_of}:
        for file in (root / folder).rglob("*"):
            path = file.relative_to(root)
            if file.suffix not in SUFFIXES or "_build" in path.parts or "_pb2" in file.name:
                continue
            within = "/".join(path.parts[:2])
            lines[part_of.get(within, part_of[folder])] += file.read_bytes().count(b"\n")
    return lines


if __name__ == "__main__":
    found = lines_of_parts(Path(__file__).parents[2])
    print(
        "; ".join(f"{part}: {found[part]:,} of {most:,} lines" for part, (_, most) in PARTS.items())
    )
