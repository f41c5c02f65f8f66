"""The tables of `grace bench eligibility`: on the screen, and in the two documents on eligibility.

A comparison with the paper reads `ours / paper (difference)`. The difference is bold if it is
larger than the calibration of the catalogue aims at: 2x for storage, 25 % for fill, 2 points for a
rate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grace.bench.eligibility.blocking import PASSING
from grace.bench.markdown import Cell, markdown_table, origin, shown, table_of
from grace.bench.result_file import Row
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

STORAGE_WITHIN = 2.0
FILL_WITHIN = 1.25
POINTS_WITHIN = 2.0

WAYS = {
    "cd": "filter afterwards (`cd`)",
    "union": "`union`",
    "static": "static k-way",
    "dynamic": "dynamic k-way",
    "exact": "**`exact`**",
}

_ELIGIBLE_ADS, _WASTED = "{eligible_ads:,.0f}", "{wasted_sids_pct:.1f}"
_RECALL = "{score_mass_pct:.1f} / {top_ads_pct:.1f}"

CATALOGUES = {
    "paper": "Ads near each other have similar rules",
    "shuffled": "Rules do not follow the SIDs",
}

_BLOCKED = {"paper": "none", "third": "a third", "nine-tenths": "nine tenths"}
_MATCHERS = {"bitmask": "bitmask", "bloom": "Bloom"}
_POSITIONS = ("root", "position 1", "position 2", "position 3")
_BUCKETS = {"<5k": "below 5,000", "5k-9.9k": "5,000 to 9,999", "10k+": "10,000 and more"}
_BUCKETS["all"] = "all requests"

Rows = Sequence[Row]


def _steps(beams: Sequence[float]) -> str:
    """Show the beams after each step but the last, whose beams are the SIDs."""
    return " / ".join(f"{mean:,.0f}" for mean in beams[:-1])


def study_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables that the paper does not have, in Markdown by the name of their marks."""
    rows: Rows = result["rows"]
    catalogue, index = _one(rows, table="catalogue"), _one(rows, table="exact")
    size = f"{catalogue['sids']:,} SIDs, {catalogue['ads']:,} ads. "
    tables = {"ways": origin(result) + size + _ways(_all(rows, catalogue="paper"))}
    sweep = _all(rows, table="selectivity", catalogue="paper", audience="sweep")
    tables["eligible ads"] = _by_range(sweep, _ELIGIBLE_ADS)
    tables["wasted"] = _by_range(sweep, _WASTED)
    tables["recall"] = _by_range(sweep, _RECALL)
    shuffled = _all(rows, table="selectivity", catalogue="shuffled", audience="sweep")
    tables["shuffled"] = _ways(_all(rows, catalogue="shuffled"))
    tables["shuffled ads"] = _by_range(shuffled, "{eligible_ads:,.0f}, {wasted_sids_pct:.0f} %")
    tables["lists"] = _lists(index, catalogue)
    return tables


def blocked_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the table of flights and filters in Markdown by the name of its marks."""
    catalogue = _one(result["rows"], table="catalogue")
    size = f"{catalogue['sids']:,} SIDs, {catalogue['ads']:,} ads. "
    return {"blocked": origin(result) + size + _blocked(result["rows"])}


def printed_tables(rows: Rows) -> str:
    """Return the tables of one run in Markdown, as far as it measured them."""
    parts = []
    for name, heading in CATALOGUES.items():
        if own := _all(rows, catalogue=name):
            sweep = _all(own, table="selectivity", audience="sweep")
            parts += [f"## {heading}\n", _ways(own)]
            parts += ["Users by the share of all ads that they may see. Eligible ads:\n"]
            parts += [_by_range(sweep, _ELIGIBLE_ADS), "Wasted SIDs, %:\n"]
            parts += [_by_range(sweep, _WASTED), "Score mass / top 100 ads, %:\n"]
            parts += [_by_range(sweep, _RECALL)]
    if _all(rows, table="passing"):
        parts += ["## Flights and filters\n", _blocked(rows)]
    return "\n".join(parts)


def paper_tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the study's tables next to the paper's, in Markdown by the name of their marks."""
    rows: Rows = result["rows"]
    catalogue = _one(rows, table="catalogue")
    matchers = [
        {**row, "kind": "bitmask" if row["kind"] == "bitmask" else "bloom"}  # the one set's
        for row in _all(rows, table="matchers")
    ]
    passes = [
        row for row in _all(rows, table="pass", catalogue="paper") if row["mode"] in MODE_NAMES
    ]
    return {
        "index": origin(result) + _index(catalogue, matchers) + "\n" + _levels(catalogue),
        "storage": _storage(matchers),
        "k-way storage": _k_way_storage(matchers),
        "fill": _fill(matchers),
        "pass": _pass(passes),
        "requests": _requests(passes),
    }


def _ways(rows: Rows) -> str:
    everyone = _all(rows, table="pass", bucket="all")
    return f"Means of {everyone[0]['users']} requests.\n\n" + table_of(
        [_one(everyone, mode=mode) for mode in _modes(everyone)],
        ("", lambda x: WAYS[x["mode"]]),
        ("generated ads", "{generated_ads:,.0f}"),
        ("eligible ads", "**{eligible_ads:,.0f}**"),
        ("of generated, %", "{final_pct:.1f}"),
        ("SIDs", "{sids:,.0f}"),
        ("wasted, %", "{wasted_sids_pct:.1f}"),
        ("live beams", lambda x: _steps(x["live_beams"])),
        ("of them useful", lambda x: _steps(x["useful_beams"])),
        ("score mass, %", "{score_mass_pct:.1f}"),
        ("top 100 ads, %", "{top_ads_pct:.1f}"),
    )


def _blocked(rows: Rows) -> str:
    """Compare the ways with flights and filters that block ads, and the same ways without them."""
    everyone = _all(rows, table="pass", bucket="all")
    modes = {row["mode"] for row in everyone if row["catalogue"] in PASSING}
    of_catalogue = [
        row
        for name in _BLOCKED
        for mode in _modes(everyone)
        for row in _all(everyone, catalogue=name, mode=mode)
        if mode in modes
    ]
    passing = {row["catalogue"]: row["ads_pct"] for row in _all(rows, table="passing")}
    return f"Means of {everyone[0]['users']} requests.\n\n" + table_of(
        of_catalogue,
        ("flights and filters block", lambda x: _BLOCKED[x["catalogue"]]),
        ("ads that pass them, %", lambda x: f"{passing.get(x['catalogue'], 100.0):.1f}"),
        ("", lambda x: WAYS[x["mode"]]),
        ("eligible ads", "**{eligible_ads:,.0f}**"),
        ("wasted SIDs, %", _WASTED),
        ("score mass, %", "{score_mass_pct:.1f}"),
        ("top 100 ads, %", "{top_ads_pct:.1f}"),
    )


def _by_range(rows: Rows, cell: Cell) -> str:
    """Return a row for each range of the eligible share of all ads, and a column for each way."""
    body = []
    for begin in sorted({row["from_pct"] for row in rows}, reverse=True):
        own = _all(rows, from_pct=begin)
        name = f"{begin:g} to {own[0]['to_pct']:g} %"
        cells = [shown(cell, _one(own, mode=mode)) for mode in _modes(rows)]
        body.append([name, str(own[0]["users"]), *cells])
    ways = [WAYS[mode] for mode in _modes(rows)]
    return markdown_table(("eligible ads of all", "users", *ways), body)


def _lists(index: Row, catalogue: Row) -> str:
    rows = [
        ("each SID's distinct rules", f"{index['leaf_rules']:,}", index["leaf_rule_bytes"]),
        *(
            (
                f"set rules by value of `{each['name']}`: include, exclude",
                f"{each['include_entries']:,}, {each['exclude_entries']:,}",
                each["bytes"],
            )
            for each in index["postings"]
        ),
    ]
    body = [(name, count, f"{size / 1e6:,.2f}") for name, count, size in rows]
    return f"{catalogue['rules']:,} distinct rules.\n\n" + markdown_table(
        ("list", "entries", "MB"), body
    )


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
            rates = [_points(row["users_pct"], paper.users)]
            rates += [_points(row["bitmask_pct"], paper.bitmask)]
            rates += [_points(row["bloom_pct"], paper.bloom)]
            body.append([name, MODE_NAMES[mode], *rates, _points(row["final_pct"], paper.final)])
    columns = ("generated ads", "", "users, %", "bitmask, %", "Bloom after it, %", "final, %")
    return markdown_table(columns, body)


def _requests(passes: Rows) -> str:
    def first_beams(row: Row) -> str:
        paper = f" / {FIRST_STEP_BEAMS}" if row["mode"] == "union" else ""
        return f"{row['live_beams'][0]:,.1f}{paper}"

    everyone = _all(passes, bucket="all")
    return f"Means of {everyone[0]['users']} requests.\n\n" + table_of(
        everyone,
        ("", lambda x: MODE_NAMES[x["mode"]]),
        ("generated ads", "{generated_ads:,.0f}"),
        ("their median", "{generated_median:,.0f}"),
        ("eligible ads", "{eligible_ads:,.0f}"),
        ("wasted SIDs, %", "{wasted_sids_pct:.1f}"),
        ("beams after step 1", first_beams),
        ("beams after step 2", "{live_beams[1]:,.1f}"),
        ("beams after step 3", "{live_beams[2]:,.1f}"),
        ("SIDs", "{live_beams[3]:,.1f}"),
    )


def _modes(rows: Rows) -> list[str]:
    """Return the modes of the rows in the tables' order: a run may have added some later."""
    found = {row["mode"] for row in rows}
    return [mode for mode in WAYS if mode in found]


def _all(rows: Rows, **wanted: str | float) -> Rows:
    return [row for row in rows if all(row.get(name) == is_ for name, is_ in wanted.items())]


def _one(rows: Rows, **wanted: str | float) -> Row:
    (found,) = _all(rows, **wanted)
    return found


def _ratio(ours: float, paper: float, form: str, within: float) -> str:
    ratio = ours / paper
    near = 1 / within <= ratio <= within
    return _compared(f"{ours:{form}}", f"{paper:{form}}", f"{ratio:.2f}x", near)


def _points(percent: float | None, paper: float) -> str:
    if percent is None:
        return f"- / {paper:.2f}"
    apart = round(percent - paper, 2) + 0.0  # no -0.00
    near = abs(apart) <= POINTS_WITHIN
    return _compared(f"{percent:.2f}", f"{paper:.2f}", f"{apart:+.2f}", near)


def _compared(ours: str, paper: str, apart: str, near: bool) -> str:
    return f"{ours} / {paper} ({apart})" if near else f"{ours} / {paper} (**{apart}**)"
