import json
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson
from grace.cli.progress import note
from grace.configs.options import Argument


def publish(
    root: Annotated[Path, Argument("A snapshot root.")],
    version: Annotated[int, Argument("One of its versions; an older one rolls back.")],
    as_json: AsJson = False,
) -> None:
    """Verify a version, then make it the current one, forward or back.

    Running servers follow it, except those that a rollback has pinned (`grace admin status`).

    Example: `grace publish snapshots 41`
    """
    from grace.index.storage import publish as make_current
    from grace.index.verify import verify_snapshot

    verify_snapshot(root, version)
    previous = make_current(root, version, on_wait=note)
    if as_json:
        print(json.dumps({"root": str(root), "from": previous, "to": version}, indent=2))
    elif previous is None:
        print(f"{root}: {version} is current; there was no current version")
    else:
        back = " (back)" if version < previous else ""
        print(f"{root}: {previous} -> {version}{back}")
