"""The tables of results: those that `grace bench` prints, and those of some documents.

python -m grace.bench.result_tables docs

writes the tables of building.md, eligibility.md, eligibility-calibration.md and fleet.md, and those
of overloads and of changes of ads in performance.md, from bench/results.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.eligibility.tables import blocked_tables, paper_tables, study_tables
from grace.bench.eligibility.tables import printed_tables as printed_study
from grace.bench.gpu.pages.document import SECTIONS
from grace.bench.gpu.pages.serve_tables import fleet_tables
from grace.bench.markdown import origin, rewrite, table_of
from grace.bench.result_file import Row, read_result

RESULTS = Path(__file__).parent / "results"
BUILD, OVERLOAD = RESULTS / "cpu-2core" / "build.json", RESULTS / "cpu-2core" / "overload.json"
BLOCKED = RESULTS / "cpu-2core" / "passrate_30m.json"
FRESH = RESULTS / "cpu-2core" / "fresh.json"
PASSRATE = RESULTS / "h200" / "passrate.json"
FLEET = RESULTS / "h200" / "fleet.json"
"""The results that the documents show."""


def printed_tables(name: str, rows: Sequence[Row]) -> str:
    """Return the rows of a table of `grace bench` in Markdown."""
    own = {"eligibility": printed_study, "fleet": fleet_tables}
    return own[name](rows) if name in own else SECTIONS[name][1](rows)


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


def fresh_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the table of changes without a server in Markdown, by the name of its marks."""
    builds = {(row["sids"], row["matchers"]): row["build_s"] for row in read_result(BUILD)["rows"]}
    table = table_of(
        result["rows"],
        ("SIDs", "{sids:,}"),
        ("ads", "{ads:,}"),
        ("changed ads", "{ads_changed:,}"),
        ("read, s: P50, P99", "{read_p50_s:.3f}, {read_p99_s:.3f}"),
        ("apply, s: P50, P99", "{apply_p50_s:.3f}, {apply_p99_s:.3f}"),
        ("snapshot, GB", "{snapshot_gb:.2f}"),
        ("more at the peak, GB", "{more_gb:.2f}"),
        ("full build, s", lambda x: builds.get((x["sids"], "exact"), "")),
    )
    return {"changes": origin(result) + table}


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


DOCUMENTS: Sequence[tuple[str, Path, Callable[[Mapping[str, Any]], dict[str, str]]]] = (
    ("building.md", BUILD, build_tables),
    ("eligibility.md", PASSRATE, study_tables),
    ("eligibility.md", BLOCKED, blocked_tables),
    ("eligibility-calibration.md", PASSRATE, paper_tables),
    ("performance.md", OVERLOAD, overload_tables),
    ("fleet.md", FLEET, fleet_document),
    ("performance.md", FRESH, fresh_tables),
)
"""The result that each document shows, and its tables by the names of their marks."""


if __name__ == "__main__":
    for document, result, tables in DOCUMENTS:
        for mark, text in tables(read_result(result)).items():
            rewrite(Path(sys.argv[1]) / document, mark, text)
