"""The tables of results: those that `grace bench` prints, and those of some documents.

python -m grace.bench.result_tables docs

writes the tables of building.md, eligibility.md, eligibility-calibration.md, fleet.md,
operations.md and sids.md, from bench/results.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.eligibility.tables import paper_tables, study_tables
from grace.bench.eligibility.tables import printed_tables as printed_study
from grace.bench.fleet.tables import fleet_tables
from grace.bench.gpu.pages.document import tables_of
from grace.bench.markdown import origin, table_of
from grace.bench.result_file import Row, read_result, rows_of
from grace.configs.marked_text import rewrite

RESULTS = Path(__file__).parent / "results"
BUILD, OVERLOAD = RESULTS / "cpu-2core" / "build.json", RESULTS / "cpu-2core" / "overload.json"
SIDS = RESULTS / "cpu-2core" / "sids.json"
PASSRATE = RESULTS / "h200" / "passrate.json"
FLEET = RESULTS / "h200" / "fleet.json"
"""The results that the documents show."""


def main(docs: Path) -> None:
    for document, result, tables in (
        ("building.md", BUILD, build_tables),
        ("eligibility.md", PASSRATE, study_tables),
        ("eligibility-calibration.md", PASSRATE, paper_tables),
        ("operations.md", OVERLOAD, overload_tables),
        ("fleet.md", FLEET, fleet_document),
        ("sids.md", SIDS, sid_tables),
    ):
        for mark, text in tables(read_result(result)).items():
            rewrite(docs / document, mark, text)


def printed_tables(name: str, rows: Sequence[Row]) -> str:
    """Return the rows of a table of `grace bench` in Markdown."""
    own = {"eligibility": printed_study, "fleet": fleet_tables}
    return own[name](rows) if name in own else tables_of(name, rows)


def fleet_document(result: Mapping[str, Any]) -> dict[str, str]:
    return {"fleet": origin(result) + fleet_tables(result["rows"])}


def build_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the table of builds and loads in Markdown, by the name of its marks."""
    table = table_of(
        result["rows"],
        ("SIDs", "{sids:,}"),
        ("ads", "{ads:,}"),
        ("matchers", lambda x: f"`{x['matchers']} {x['options']}".rstrip() + "`"),
        ("build, s", "{build_s:.1f}"),
        ("s per million ads", "{build_s_per_million_ads:.2f}"),
        ("peak, GB", "{peak_gb:.2f}"),
        (
            "load and verify, s: best, most of three",
            "{load_verify_s:.2f}, {load_verify_most_s:.2f}",
        ),
        ("snapshot, GB", "{snapshot_gb:.2f}"),
    )
    return {"build": origin(result) + table}


def overload_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the table of overloads in Markdown, by the name of its marks."""
    table = table_of(
        result["rows"],
        ("engine, requests/s", "{capacity_rps:g}"),
        ("offered", "{offered:g}x"),
        ("deadline, ms", "{deadline_ms:g}"),
        ("relays", "{front_ends}"),
        ("goodput, % of the engine", lambda x: f"{100 * x['goodput']:.1f}"),
        ("executed, but too late, %", lambda x: f"{100 * x['executed_late']:.2f}"),
        ("P99 of answers, ms", "{ok_p99_ms:.0f}"),
        ("P99 of refusals, ms", "{refused_p99_ms:.0f}"),
        ("recovery, ms", "{recovery_ms}"),
    )
    return {"overload": origin(result) + table}


def sid_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of `grace sids` in Markdown, by the names of their marks."""
    rows = result["rows"]
    hierarchy = table_of(
        rows_of(rows, "hierarchy"),
        ("tokens of the prefix", "{step}"),
        ("nodes", "{nodes:,}"),
        ("prefixes", "{prefixes:,}"),
        ("mutual information", "{nmi:.3f}"),
        ("error", "{error:.1%}"),
    )
    recall = table_of(
        rows_of(rows, "recall"),
        (
            "SIDs",
            lambda row: {"true": "of the catalogue", "learned": "`grace sids`"}[row["variant"]],
        ),
        ("catalogues", lambda row: str(len(row["sids"]))),
        ("users", "{users:,}"),
        *((f"recall at {k}", _recall_at(k)) for k in ("1", "5", "10", "50")),
    )
    speed = table_of(
        rows_of(rows, "speed"),
        ("vectors", "{values:,}"),
        ("numbers each", "{dims}"),
        ("SIDs", "{sids:,}"),
        ("error by level", lambda row: _listed(f"{each['error']:.1%}" for each in row["levels"])),
        ("seconds", "{seconds:.0f}"),
        ("seconds of a core", "{cpu_seconds:.0f}"),
        ("peak, GB", "{peak_gb:.1f}"),
    )
    faiss = table_of(
        rows_of(rows, "faiss"),
        ("items", "{catalogue}"),
        ("by", "{variant}"),
        ("error by level", lambda row: _listed(f"{error:.1%}" for error in row["errors"])),
        ("mutual information", lambda row: _listed(row.get("nmi", ()))),
        ("unused codes", lambda row: _listed(row["unused"])),
        ("fullest code, even shares", lambda row: _listed(row["fullest"])),
        ("most items of a SID", "{most_items_per_sid}"),
        ("seconds", "{seconds:.0f}"),
        ("peak, GB", "{peak_gb:.1f}"),
    )
    return {
        "sid_hierarchy": origin(result) + hierarchy,
        "sid_speed": speed,
        "sid_recall": recall,
        "sid_faiss": faiss,
    }


def _recall_at(k: str) -> Callable[[Row], str]:
    return lambda row: f"{row['recall'][k]:.1%} ({row['of_true'][k]:.2f})"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
