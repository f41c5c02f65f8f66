import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson
from grace.cli.reports import print_facts
from grace.configs.errors import SnapshotError
from grace.configs.options import Argument, Option


def verify(
    path: Annotated[Path, Argument("A snapshot root, or ROOT/VERSION.", "ROOT")],
    version: Annotated[
        int | None, Option("Version of ROOT to check. Default: the current one.", least=1)
    ] = None,
    deep: Annotated[bool, "Build all arrays from the ads' rules again, and compare."] = False,
    as_json: AsJson = False,
) -> None:
    """Check sizes, digests and arrays of a snapshot. Exit code 1 names the file and the fault.

    Example: `grace verify snapshots --deep`
    """
    from grace.index.verify import verify_snapshot

    try:
        report = verify_snapshot(path, version, deep=deep)
    except SnapshotError as error:
        if as_json:
            place = {"path": str(error.folder or path), "file": error.file}
            print(json.dumps({"ok": False, **place, "fault": error.fault}, indent=2))
        raise
    if as_json:
        print(json.dumps({"ok": True, **asdict(report)}, default=str, indent=2))
        return
    print("ok")
    print_facts(report, report.counts)
