"""The generated tables of building.md, eligibility.md and operations.md, from bench/results.

    python -m grace.bench.result_tables docs

A comparison with the paper reads `ours / paper (difference)`. The difference is bold if it is
larger than the calibration of the catalogue aims at: 2x for storage, 25 % for fill, 2 points for a
rate.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.markdown import markdown_table, table_of
from grace.bench.result_file import Row, read_result
from grace.catalogues.paper.published import (
    ADS_PER_SID,
    FILL,
    FIRST_STEP_BEAMS,
    MATCHER_WORDS,
    MODE_NAMES,
    PASS,
    SIDS,
    STORAGE_MB,
)
from grace.configs.marked_text import rewrite

RESULTS = Path(__file__).parent / "results" / "cpu-2core"
"""The results that the documents show."""

STORAGE_WITHIN = 2.0
FILL_WITHIN = 1.25
POINTS_WITHIN = 2.0

_MATCHERS = {"bitmask": "bitmask", "bloom": "Bloom"}
_POSITIONS = ("root", "position 1", "position 2", "position 3")
_BUCKETS = {"<5k": "below 5,000", "5k-9.9k": "5,000 to 9,999", "10k+": "10,000 and more"}
_BUCKETS["all"] = "all requests"

Rows = Sequence[Row]


def main(docs: Path) -> None:
    for document, result, tables in (
        ("building.md", "build.json", build_tables),
        ("eligibility.md", "eligibility.json", eligibility_tables),
        ("operations.md", "overload.json", overload_tables),
    ):
        for mark, text in tables(read_result(RESULTS / result)).items():
            rewrite(docs / document, mark, text)


def _origin(result: Mapping[str, Any]) -> str:
    """One line about what measured the rows."""
    return f"Commit {result['commit']}, {result['machine']}: `{result['command']}`.\n\n"


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
    return {"build": _origin(result) + table}


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
    return {"overload": _origin(result) + table}


def eligibility_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the study's tables next to the paper's, in Markdown by the name of their marks."""
    rows: Rows = result["rows"]
    catalogue = _one(rows, table="catalogue")
    matchers = [
        {**row, "kind": "bitmask" if row["kind"] == "bitmask" else "bloom"}  # the one set's
        for row in _all(rows, table="matchers")
    ]
    passes = _all(rows, table="pass")
    return {
        "index": _origin(result) + _index(catalogue, matchers) + "\n" + _levels(catalogue),
        "storage": _storage(matchers),
        "k-way storage": _k_way_storage(matchers),
        "fill": _fill(matchers),
        "pass": _pass(passes),
        "requests": _requests(passes),
    }


def _index(catalogue: Row, matchers: Rows) -> str:
    percentiles = catalogue["ads_per_sid"]
    words = {row["kind"]: row["bytes_before"] // row["partitions"] // 8 for row in matchers}
    ours = " / ".join(str(percentiles[name]) for name in ("p50", "p90", "p99"))
    rows = [
        ("SIDs", f"{catalogue['sids']:,}", SIDS),
        ("ads", f"{catalogue['ads']:,}", ""),
        ("ads per SID p50/p90/p99", ours, " / ".join(map(str, ADS_PER_SID))),
        ("ads per SID, most", f"{percentiles['max']:,}", ""),
    ]
    for kind, name in _MATCHERS.items():
        rows.append((f"words of a {name} row", str(words[kind]), str(MATCHER_WORDS[kind])))
    rows.append(("distinct rules", f"{catalogue['rules']:,}", ""))
    return markdown_table(("", "ours", "paper"), rows)


def _levels(catalogue: Row) -> str:
    """The paper's entries follow from its storage before deduplication: one row for each."""
    row_bytes = 8 * MATCHER_WORDS["bitmask"]
    paper = ["", *(f"{mb / row_bytes:.3g} M" for mb, _ in STORAGE_MB["bitmask"])]
    return table_of(
        catalogue["levels"],
        ("", lambda x: _POSITIONS[x["position"]]),
        ("child entries", "{entries:,}"),
        ("paper, from its storage", lambda x: paper[x["position"]]),
        ("mean fan-out", "{mean_fan_out:.3g}"),
        ("largest", "{max_fan_out}"),
    )


def _storage(matchers: Rows) -> str:
    body = []
    for kind, name in _MATCHERS.items():
        for position, (paper, paper_after) in enumerate(STORAGE_MB[kind], 1):
            row = _one(matchers, mode="union", kind=kind, position=position)
            before, after = row["bytes_before"] / 1e6, row["bytes_after"] / 1e6
            cells = [name, _POSITIONS[position], _ratio(before, paper, ".4g", STORAGE_WITHIN)]
            cells.append(_ratio(after, paper_after, ".3g", STORAGE_WITHIN))
            body.append([*cells, f"{before / after:.1f} / {paper / paper_after:.1f}"])
    columns = ("rows", "", "before, MB", "after, MB", "before / after: ours / paper")
    return markdown_table(columns, body)


def _k_way_storage(matchers: Rows) -> str:
    body = []
    for mode in _modes(matchers):
        for kind, name in _MATCHERS.items():
            of = _all(matchers, mode=mode, kind=kind)
            partitions, distinct, before, after = (
                sum(row[what] for row in of)
                for what in ("partitions", "rows", "bytes_before", "bytes_after")
            )
            sizes = (f"{size / 1e6:,.0f}" for size in (before, after, 4 * partitions))
            body.append([MODE_NAMES[mode], name, f"{partitions:,}", f"{distinct:,}", *sizes])
    columns = ("", "rows", "partitions", "distinct", "before, MB", "after, MB", "row ids, MB")
    return markdown_table(columns, body)


def _fill(matchers: Rows) -> str:
    body = []
    for kind, name in _MATCHERS.items():
        for mode in _modes(matchers):
            cells = [
                _ratio(row["fill"], FILL[kind, mode][row["position"]], ".3f", FILL_WITHIN)
                for row in _all(matchers, mode=mode, kind=kind)
            ]
            body.append([name, MODE_NAMES[mode], *cells])
    return markdown_table(("rows", "", *_POSITIONS), body)


def _pass(passes: Rows) -> str:
    body = []
    for bucket, name in _BUCKETS.items():
        for mode in _modes(passes):
            row, paper = _one(passes, mode=mode, bucket=bucket), PASS[bucket, mode]
            rates = [_points(row["users_share"], paper.users)]
            rates += [_points(row["bitmask_pass"], paper.bitmask)]
            rates += [_points(row["bloom_pass"], paper.bloom)]
            body.append([name, MODE_NAMES[mode], *rates, _points(row["final_pass"], paper.final)])
    columns = ("generated ads", "", "users, %", "bitmask, %", "Bloom after it, %", "final, %")
    return markdown_table(columns, body)


def _requests(passes: Rows) -> str:
    def first_beams(row: Row) -> str:
        paper = f" / {FIRST_STEP_BEAMS}" if row["mode"] == "union" else ""
        return f"{row['beams'][0]:,.1f}{paper}"

    everyone = _all(passes, bucket="all")
    return f"Means of {everyone[0]['users']} requests.\n\n" + table_of(
        everyone,
        ("", lambda x: MODE_NAMES[x["mode"]]),
        ("generated ads", "{generated:,.0f}"),
        ("their median", "{generated_median:,.0f}"),
        ("matched ads", "{matched:,.0f}"),
        ("SIDs without a match", "{sids_without_match:.1f}"),
        ("beams after step 1", first_beams),
        ("beams after step 2", "{beams[1]:,.1f}"),
        ("beams after step 3", "{beams[2]:,.1f}"),
        ("SIDs", "{beams[3]:,.1f}"),
    )


def _modes(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["mode"] for row in rows))


def _all(rows: Rows, **wanted: str | int) -> Rows:
    return [row for row in rows if all(row[name] == is_ for name, is_ in wanted.items())]


def _one(rows: Rows, **wanted: str | int) -> Row:
    (found,) = _all(rows, **wanted)
    return found


def _ratio(ours: float, paper: float, form: str, within: float) -> str:
    ratio = ours / paper
    near = 1 / within <= ratio <= within
    return _compared(f"{ours:{form}}", f"{paper:{form}}", f"{ratio:.2f}x", near)


def _points(share: float | None, paper: float) -> str:
    if share is None:
        return f"- / {paper:.2f}"
    apart = round(100 * share - paper, 2) + 0.0  # no -0.00
    near = abs(apart) <= POINTS_WITHIN
    return _compared(f"{100 * share:.2f}", f"{paper:.2f}", f"{apart:+.2f}", near)


def _compared(ours: str, paper: str, apart: str, near: bool) -> str:
    return f"{ours} / {paper} ({apart})" if near else f"{ours} / {paper} (**{apart}**)"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
