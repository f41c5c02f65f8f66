"""Change the code in one place at a time, and see whether the tests notice.

    python tests/mutations/run.py [TABLE.yaml ...] [--row NAME] [--jobs N] [--json FILE]

A row changes one place of a file and names the tests that should fail then. It is killed, survived,
hung (no end in `--seconds`), stale (`old` is not there once), not built, or not run, because one of
its tests fails in an unchanged tree. Each job has a copy of the tree.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".hypothesis", ".*_cache")
BUILD = ("-m", "grace.native.build")
TEST = ("-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider")


def end_of(tree: Path, arguments: tuple[str, ...], seconds: float) -> str:
    """Run Python in a tree, and return how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command, out = [sys.executable, *arguments], subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=tree, env=environment, process_group=0, stdout=out, stderr=out
    )
    try:
        return "survived" if process.wait(seconds) == 0 else "killed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hung"


def result_of(tree: Path, row: dict[str, Any], seconds: float) -> str:
    if "file" not in row:
        return end_of(tree, (*TEST, *row["tests"]), seconds)
    file, builds = tree / row["file"], row["file"].startswith("native/")
    text = file.read_text(encoding="utf-8")
    if text.count(row["old"]) != 1:
        return "stale"
    file.write_text(text.replace(row["old"], row["new"]), encoding="utf-8")
    try:
        if builds and end_of(tree, BUILD, seconds) != "survived":
            return "not built"
        return end_of(tree, (*TEST, *row["tests"]), seconds)
    finally:
        file.write_text(text, encoding="utf-8")
        if builds:
            end_of(tree, BUILD, seconds)


def run(rows: list[dict[str, Any]], trees: list[Path], seconds: float) -> None:
    """Print the `result` of each row, and add it to the row."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(shutil.copytree(FOLDER.parents[1], tree, symlinks=True, ignore=LEFT_OUT))

    def attempt(row: dict[str, Any]) -> bool:
        tree = free.get()
        result = row["result"] = result_of(tree, row, seconds)
        free.put(tree)
        print(f"{result:9} {row['table']:14} {row['name']}", flush=True)
        return result == "survived"

    tests = sorted({test for row in rows for test in row["tests"]})
    unchanged = [{"table": "unchanged", "name": test, "tests": [test]} for test in tests]
    with ThreadPoolExecutor(len(trees)) as pool:
        passed = dict(zip(tests, pool.map(attempt, unchanged), strict=True))
        for row in rows:
            row["result"] = "not run"
        list(pool.map(attempt, (row for row in rows if all(passed[test] for test in row["tests"]))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", help="files of this folder; all without any")
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path, default=Path(os.devnull))
    given = parser.parse_args()
    tables = [FOLDER / each for each in given.tables] or sorted(FOLDER.glob("*.yaml"))
    rows = [{"table": each.stem, **row} for each in tables for row in yaml.safe_load(each.open())]
    rows = [row for row in rows if not given.row or row["name"] in given.row]
    with tempfile.TemporaryDirectory() as folder:
        run(rows, [Path(folder) / str(job) for job in range(given.jobs)], given.seconds)
    given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(dict(Counter(row["result"] for row in rows)))
