import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson
from grace.cli.reports import coverage_table, print_facts
from grace.configs.options import Argument


def inspect(
    snapshot: Annotated[Path, Argument("ROOT (its current version) or ROOT/VERSION.")],
    version: Annotated[int | None, "Another version of ROOT."] = None,
    eligibility: Annotated[
        str, "What decoding tests: exact, cd, union, static or dynamic."
    ] = "exact",
    as_json: AsJson = False,
) -> None:
    """Print a snapshot's index summary: counts per level, ads per SID, matchers or posting lists.

    `--eligibility` is as for `grace serve`: what decoding tests follows from the snapshot.

    The first line lists the versions of ROOT, and which one is current. `grace admin status` shows
    the one that a server has pinned.

    Example: `grace inspect snapshots`
    """
    from grace.configs.eligibility import Eligibility
    from grace.index.storage import load_snapshot, readable_current, root_of, versions
    from grace.index.summary import summarize

    chosen = Eligibility.of(eligibility)
    summary = summarize(load_snapshot(snapshot, version, eligibility=chosen))
    there, current = versions(root_of(snapshot)), readable_current(root_of(snapshot))
    if as_json:
        listed = {"versions": there, "current_version": current}
        print(json.dumps(asdict(summary) | listed, indent=2))
    else:
        named = "none of them" if current is None else current
        print(f"versions here: {', '.join(map(str, there))}; current: {named}")
        parts = (summary,) if summary.exact is None else (summary, summary.exact)
        print_facts(*parts, tables=[coverage_table(summary.coverage)])
