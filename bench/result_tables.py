"""The generated tables of docs/building.md and docs/eligibility.md, from files in bench/results.

    python -m grace.bench.result_tables docs

A comparison with the paper reads `ours / paper (difference)`. The difference is bold if it is
larger than the calibration of the catalogue aims at: 2x for storage, 25 % for fill, 2 points for a
rate.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.bench.result_file import read_result
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

Rows = Sequence[Mapping[str, Any]]


def main(arguments: Sequence[str]) -> None:
    (docs,) = map(Path, arguments)
    build, eligibility = (
        read_result(RESULTS / f"{name}.json") for name in ("build", "eligibility")
    )
    for document, tables in (
        (docs / "building.md", build_tables(build)),
        (docs / "eligibility.md", eligibility_tables(eligibility)),
    ):
        for mark, text in tables.items():
            rewrite(document, mark, text)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _origin(result: Mapping[str, Any]) -> str:
    """One line about what measured the rows."""
    return f"Commit {result['commit']}, {result['machine']}: `{result['command']}`.\n\n"


def build_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """What builds and loads cost, as Markdown by the name of its marks."""
    columns = (
        "SIDs",
        "ads",
        "matchers",
        "build, s",
        "s per million ads",
        "peak, GB",
        "load and verify, s: best, most of three",
        "snapshot, GB",
    )
    rows = (
        (
            f"{row['sids']:,}",
            f"{row['ads']:,}",
            f"`{row['matchers']} {row['options']}".rstrip() + "`",
            f"{row['build_s']:.1f}",
            f"{row['build_s_per_million_ads']:.2f}",
            f"{row['peak_gb']:.2f}",
            f"{row['load_verify_s']:.2f}, {row['load_verify_most_s']:.2f}",
            f"{row['snapshot_gb']:.2f}",
        )
        for row in result["rows"]
    )
    return {"build": _origin(result) + markdown_table(columns, rows)}


def eligibility_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """The study's rows next to the paper's, as Markdown by the name of the marks."""
    rows: Rows = result["rows"]
    (catalogue,) = (row for row in rows if row["table"] == "catalogue")
    matchers = [
        {**row, "kind": "bitmask" if row["kind"] == "bitmask" else "bloom"}  # the one set's
        for row in rows
        if row["table"] == "matchers"
    ]
    passes = [row for row in rows if row["table"] == "pass"]
    return {
        "index": _origin(result) + _index(catalogue, matchers) + "\n" + _levels(catalogue),
        "storage": _storage(matchers),
        "k-way storage": _k_way_storage(matchers),
        "fill": _fill(matchers),
        "pass": _pass(passes),
        "requests": _requests(passes),
    }


def _index(catalogue: Mapping[str, Any], matchers: Rows) -> str:
    percentiles = catalogue["ads_per_sid"]
    words = {row["kind"]: row["bytes_before"] // row["partitions"] // 8 for row in matchers}
    return markdown_table(
        ("", "ours", "paper"),
        [
            ("SIDs", f"{catalogue['sids']:,}", SIDS),
            ("ads", f"{catalogue['ads']:,}", ""),
            (
                "ads per SID p50/p90/p99",
                " / ".join(str(percentiles[name]) for name in ("p50", "p90", "p99")),
                " / ".join(map(str, ADS_PER_SID)),
            ),
            ("ads per SID, most", f"{percentiles['max']:,}", ""),
            *(
                (f"words of a {name} row", str(words[kind]), str(MATCHER_WORDS[kind]))
                for kind, name in _MATCHERS.items()
            ),
            ("distinct rules", f"{catalogue['rules']:,}", ""),
        ],
    )


def _levels(catalogue: Mapping[str, Any]) -> str:
    """The paper's entries follow from its storage before deduplication: one row for each."""
    row_bytes = 8 * MATCHER_WORDS["bitmask"]
    paper = ["", *(f"{mb / row_bytes:.3g} M" for mb, _ in STORAGE_MB["bitmask"])]
    return markdown_table(
        ("", "child entries", "paper, from its storage", "mean fan-out", "largest"),
        [
            (
                _POSITIONS[level["position"]],
                f"{level['entries']:,}",
                published,
                f"{level['mean_fan_out']:.3g}",
                str(level["max_fan_out"]),
            )
            for level, published in zip(catalogue["levels"], paper, strict=True)
        ],
    )


def _storage(matchers: Rows) -> str:
    rows = []
    for kind, name in _MATCHERS.items():
        for place, paper in enumerate(STORAGE_MB[kind]):
            row = _one(matchers, mode="union", kind=kind, position=1 + place)
            before, after = row["bytes_before"] / 1e6, row["bytes_after"] / 1e6
            rows.append(
                (
                    name,
                    _POSITIONS[1 + place],
                    _ratio(before, paper[0], ".4g", STORAGE_WITHIN),
                    _ratio(after, paper[1], ".3g", STORAGE_WITHIN),
                    f"{before / after:.1f} / {paper[0] / paper[1]:.1f}",
                )
            )
    columns = ("rows", "", "before, MB", "after, MB", "before / after: ours / paper")
    return markdown_table(columns, rows)


def _k_way_storage(matchers: Rows) -> str:
    rows = []
    for mode in _modes(matchers):
        for kind, name in _MATCHERS.items():
            of = [row for row in matchers if (row["mode"], row["kind"]) == (mode, kind)]
            partitions, distinct, before, after = (
                sum(row[what] for row in of)
                for what in ("partitions", "rows", "bytes_before", "bytes_after")
            )
            numbers = (f"{partitions:,}", f"{distinct:,}")
            sizes = (f"{size / 1e6:,.0f}" for size in (before, after, 4 * partitions))
            rows.append((MODE_NAMES[mode], name, *numbers, *sizes))
    columns = ("", "rows", "partitions", "distinct", "before, MB", "after, MB", "row ids, MB")
    return markdown_table(columns, rows)


def _fill(matchers: Rows) -> str:
    rows = []
    for kind, name in _MATCHERS.items():
        for mode in _modes(matchers):
            paper = FILL[kind, mode]
            cells = [
                _ratio(row["fill"], paper[row["position"]], ".3f", FILL_WITHIN)
                for row in matchers
                if (row["mode"], row["kind"]) == (mode, kind)
            ]
            rows.append((name, MODE_NAMES[mode], *cells))
    return markdown_table(("rows", "", *_POSITIONS), rows)


def _pass(passes: Rows) -> str:
    rows = []
    for bucket, name in _BUCKETS.items():
        for mode in _modes(passes):
            row, paper = _one(passes, mode=mode, bucket=bucket), PASS[bucket, mode]
            rows.append(
                (
                    name,
                    MODE_NAMES[mode],
                    _points(row["users_share"], paper.users),
                    _points(row["bitmask_pass"], paper.bitmask),
                    _points(row["bloom_pass"], paper.bloom),
                    _points(row["final_pass"], paper.final),
                )
            )
    columns = ("generated ads", "", "users, %", "bitmask, %", "Bloom after it, %", "final, %")
    return markdown_table(columns, rows)


def _requests(passes: Rows) -> str:
    rows = []
    for mode in _modes(passes):
        row = _one(passes, mode=mode, bucket="all")
        beams = [f"{count:,.1f}" for count in row["beams"]]
        if mode == "union":
            beams[0] += f" / {FIRST_STEP_BEAMS}"
        counts = (row[name] for name in ("generated", "generated_median", "matched"))
        in_vain = f"{row['sids_without_match']:.1f}"
        rows.append((MODE_NAMES[mode], *(f"{count:,.0f}" for count in counts), in_vain, *beams))
    users = _one(passes, mode=_modes(passes)[0], bucket="all")["users"]
    return f"Means of {users} requests.\n\n" + markdown_table(
        (
            "",
            "generated ads",
            "their median",
            "matched ads",
            "SIDs without a match",
            *(f"beams after step {step}" for step in (1, 2, 3)),
            "SIDs",
        ),
        rows,
    )


def _modes(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["mode"] for row in rows))


def _one(rows: Rows, **wanted: str | int) -> Mapping[str, Any]:
    (found,) = (row for row in rows if all(row[name] == is_ for name, is_ in wanted.items()))
    return found


def _ratio(ours: float, paper: float, form: str, within: float) -> str:
    ratio = ours / paper
    return _compared(
        f"{ours:{form}}", f"{paper:{form}}", f"{ratio:.2f}x", 1 / within <= ratio <= within
    )


def _points(share: float | None, paper: float) -> str:
    if share is None:
        return f"- / {paper:.2f}"
    apart = round(100 * share - paper, 2) + 0.0  # no -0.00
    return _compared(
        f"{100 * share:.2f}", f"{paper:.2f}", f"{apart:+.2f}", abs(apart) <= POINTS_WITHIN
    )


def _compared(ours: str, paper: str, apart: str, near: bool) -> str:
    return f"{ours} / {paper} ({apart})" if near else f"{ours} / {paper} (**{apart}**)"


if __name__ == "__main__":
    main(sys.argv[1:])
