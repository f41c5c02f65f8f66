"""`grace inspect`: print what a snapshot holds."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from grace.cli.options import AsJson
from grace.configs.options import Argument

if TYPE_CHECKING:
    from rich.table import Table

    from grace.index.summary import IndexSummary


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
        print(json.dumps(summary.to_json() | listed, indent=2))
    else:
        named = "none of them" if current is None else current
        print(f"versions here: {', '.join(map(str, there))}; current: {named}")
        print_summary(summary)


def print_summary(summary: "IndexSummary") -> None:
    from grace.cli.tables import coverage_table, table_console

    console = table_console()
    for line in _lines(summary):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(coverage_table(summary.coverage))
    console.print(_table("Trie", summary.levels))
    if summary.matchers:
        title = "Matchers, before and after deduplication"
        console.print(_table(title, summary.matchers, left=1))
    if summary.exact is not None and summary.exact.postings:
        title = "Posting lists: the set rules that name a value"
        console.print(_table(title, summary.exact.postings, left=1))
    if summary.mode == "static":
        console.print("Mean fill counts the empty partitions that fixed widths leave, as 0.")


def _lines(summary: "IndexSummary") -> Iterator[str]:
    yield (
        f"version {summary.version}, created {summary.created_at}, "
        f"SID space {summary.sid_space!r}, mode {_mode(summary)}"
    )
    per_sid = "/".join(str(summary.ads_per_sid[key]) for key in ("p50", "p90", "p99", "max"))
    vocabularies = " x ".join(map(str, summary.vocab_sizes))
    yield f"{summary.sids:,} SIDs over vocabularies of {vocabularies}"
    yield f"{summary.ads:,} ads, per SID p50/p90/p99/max {per_sid}; {summary.rejects} refused"
    yield f"{summary.rules:,} distinct rules from {summary.rule_bitmask_rows:,} bitmask rows"
    for name, count in summary.set_rules.items():
        yield f"    and {count:,} {name} rules over {summary.set_values[name]:,} values"
    for entities in summary.entities:
        per_entity = "/".join(map(str, entities.ads_per_entity.values()))
        yield (
            f"{entities.name}: {entities.distinct:,} distinct, ads of each p50/p99/max "
            f"{per_entity}; {entities.ads_without:,} ads without one"
        )
    if summary.exact is not None:
        exact = summary.exact
        rules_per_sid = "/".join(map(str, exact.rules_per_sid.values()))
        yield (
            f"{exact.leaf_rules:,} pairs of SID and distinct rule, per SID p50/p90/p99/max "
            f"{rules_per_sid}; {_size(exact.leaf_rule_bytes)}"
        )
    else:
        words = ", ".join(f"{kind} {n}" for kind, n in summary.matcher_words.items())
        yield f"64-bit words of a matcher row: {words}"
    parts = ", ".join(f"{name.replace('_', ' ')} {_size(n)}" for name, n in summary.bytes.items())
    yield f"{_size(sum(summary.bytes.values()))} in memory: {parts}"
    yield f"updates_watermark {summary.updates_watermark} (the last update of ads in the table)"


def _mode(summary: "IndexSummary") -> str:
    settings = summary.k_way or {}
    if "widths" in settings:
        return f"{summary.mode}, partitions per token {','.join(map(str, settings['widths']))}"
    shown = (f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())
    return ", ".join((summary.mode, *shown))


def _size(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _table(title: str, rows: Sequence[Any], left: int = 0) -> "Table":
    """Return a table with a row for each of these dataclasses, and a column for each field."""
    from grace.cli.tables import plain_table

    names = [field.name for field in fields(rows[0])]
    table = plain_table(title, *(name.replace("_", " ") for name in names), left=left)
    for row in rows:
        table.add_row(*(_cell(name, getattr(row, name)) for name in names))
    return table


def _cell(name: str, value: Any) -> str:
    if name == "position":
        return "root" if value == 0 else f"p{value}"
    if "bytes" in name:
        return _size(value)
    if isinstance(value, float):
        return f"{value:.3f}"
    return value if isinstance(value, str) else f"{value:,}"
