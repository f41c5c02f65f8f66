"""Load servers of the demonstration catalogue, and draw the dashboard from what Prometheus saw.

    python -m grace.bench.monitoring.picture --out docs/pictures/dashboard.png

Two servers run on this machine's CPU, and `prometheus` must be installed. The load rises beyond
what the servers can do and falls again. Some calls cannot be read. Meanwhile an index is published,
and some advertisers are stopped. Needs matplotlib (`plots`).
"""

import math
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from grace import configs
from grace.bench.figures import Axes, EngFormatter, Figure
from grace.bench.load.client import OpenLoop, run_load
from grace.bench.load.options import out_file, parser_of, positive, run_command
from grace.bench.load.shots import Shot, read_shots
from grace.bench.monitoring.panels import DashboardPanel, read_panels
from grace.bench.monitoring.prometheus import Prometheus
from grace.bench.result_file import commit, machine
from grace.bench.running_server import RunningServer, write_server_config
from grace.catalogues.demonstration import CHECKPOINT
from grace.catalogues.synth import preset_spec, write_folder
from grace.client import AdminClient
from grace.index.builder import BuildSpec, build
from grace.index.storage import load_snapshot
from grace.proto.retrieval_pb2 import UpdateAdsRequest

PROFILES = Path(configs.__file__).parent / "serve.yaml"
DASHBOARD = Path(__file__).resolve().parents[2] / "docker" / "monitoring" / "dashboard.json"
SHARES = (0.3, 0.6, 0.9, 1.5, 2.5, 0.9, 0.5)
"""The load of each part of the run, as a share of --rate."""
PUBLISH_AT, STOP_AT = 0.25, 0.8  # shares of the run
SCRAPE_SECONDS = 2.0
RATE_INTERVAL = "12s"
FINISH_SECONDS = 2.0
TOP_ROWS = 2
TIMEOUT_SECONDS = 1.0
FAULTY_ONE_IN = 40
STOPPED = 9  # advertisers

COLUMNS, COLUMN_INCHES, LINE_INCHES = 24, 0.62, 0.3
LEGEND_NAMES = 6  # at most, of a panel
UNITS = {"bytes": "B", "s": "s", "reqps": "/s", "cps": "/s"}
"""Grafana's units, as the picture names them."""

Curves = Mapping[str, Mapping[float, float]]
"""The values of a panel's series by minute, by the names in its legend."""


def main(arguments: Sequence[str]) -> None:
    parser = parser_of("grace.bench.monitoring.picture", __doc__)
    parser.add_argument("--out", type=out_file, required=True, help="PNG file")
    parser.add_argument("--top", type=out_file, help="PNG file of the first two rows alone")
    parser.add_argument("--seconds", type=positive, default=300.0, help="default: 300")
    parser.add_argument(
        "--rate", type=positive, default=60.0, help="calls a second to each server; default: 60"
    )
    options = parser.parse_args(arguments)
    title = f"GRACE: two servers of the demonstration catalogue on {machine()}; commit {commit()}"
    with tempfile.TemporaryDirectory() as folder:
        panels = _observed(Path(folder), options.seconds, options.rate)
    draw(panels, title).savefig(options.out)
    if options.top is not None:
        rows = [place for place, (panel, _) in enumerate(panels) if panel.kind == "row"]
        draw(panels[: rows[TOP_ROWS]], title).savefig(options.top)


def _observed(folder: Path, seconds: float, rate: float) -> list[tuple[DashboardPanel, Curves]]:
    catalogue = folder / "catalogue"
    write_folder(preset_spec("demo"), catalogue)
    spec = BuildSpec(
        (catalogue / "ads.parquet",), catalogue / "targeting.yaml", folder / "snapshots"
    )
    build(spec, lambda step, done, total: None)
    shots = read_shots(catalogue / "requests.jsonl", TIMEOUT_SECONDS)
    faulty = Shot(b"\xff", TIMEOUT_SECONDS)
    mixed = [each if number % FAULTY_ONE_IN else faulty for number, each in enumerate(shots, 1)]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(folder, name)) for name in ("a", "b")}
        names = {str(x.events("listening")[0]["metrics"]): name for name, x in servers.items()}
        prometheus = stack.enter_context(Prometheus(folder, list(names), SCRAPE_SECONDS))
        time.sleep(2 * SCRAPE_SECONDS)
        begin = time.time()
        with ThreadPoolExecutor() as pool:
            work = [
                pool.submit(_publish_and_stop, spec, servers.values(), seconds),
                *(pool.submit(_load, x.address, mixed, seconds, rate) for x in servers.values()),
            ]
        for each in work:
            each.result()
        return [
            (panel, _curves(prometheus, panel, begin, begin + seconds, names))
            for panel in read_panels(DASHBOARD, RATE_INTERVAL)
        ]


def _server(folder: Path, name: str) -> RunningServer:
    config = write_server_config(
        folder / f"{name}.yaml",
        folder / "snapshots",
        CHECKPOINT,
        PROFILES,
        state_dir=str(folder / name),
    )
    return RunningServer(config, folder / f"{name}.log")


def _load(address: str, shots: Sequence[Shot], seconds: float, rate: float) -> None:
    part = seconds / len(SHARES)
    for number, share in enumerate(SHARES):
        begin = time.monotonic()
        load = OpenLoop(rate * share, part - FINISH_SECONDS, number, FINISH_SECONDS)
        run_load(address, shots, load, connections=8)
        time.sleep(max(0.0, begin + part - time.monotonic()))


def _publish_and_stop(spec: BuildSpec, servers: Iterable[RunningServer], seconds: float) -> None:
    time.sleep(PUBLISH_AT * seconds)
    build(spec, lambda step, done, total: None)
    time.sleep((STOP_AT - PUBLISH_AT) * seconds)
    snapshot = load_snapshot(spec.root)
    level = snapshot.schema.entities.index("advertiser")
    advertisers = snapshot.entities[level].ids[:STOPPED].tolist()
    update = UpdateAdsRequest(sequence=1, kind=UpdateAdsRequest.KIND_FULL)
    update.stop["advertiser"].ids.extend(advertisers)
    for server in servers:
        with AdminClient(server.admin_address) as admin:
            admin.update_ads(update, TIMEOUT_SECONDS)


def _curves(
    prometheus: Prometheus,
    panel: DashboardPanel,
    begin: float,
    end: float,
    names: Mapping[str, str],
) -> Curves:
    """Return the curves of a panel, by server, with a short name of each server."""
    found: list[tuple[str, str, Mapping[float, float]]] = []
    for query in panel.queries:
        for series in prometheus.query_range(query.expr, begin, end, SCRAPE_SECONDS):
            if series.has_number:
                at = series.labels.get("instance", "")
                labels = {**series.labels, "instance": names.get(at, at)}
                name = query.name
                for label in re.findall(r"{{(\w+)}}", query.name):
                    name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
                minutes = ((time - begin) / 60 for time in series.times)
                values = dict(zip(minutes, series.values, strict=True))
                found.append((labels["instance"], name, values))
    return {name: values for _, name, values in sorted(found, key=lambda each: each[0])}


def draw(panels: Sequence[tuple[DashboardPanel, Curves]], title: str) -> Figure:
    """Draw the panels where Grafana has them."""
    lines = max(panel.place["y"] + panel.place["h"] for panel, _ in panels)
    size = COLUMNS * COLUMN_INCHES, lines * LINE_INCHES + 0.5
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=13)
    grid = figure.add_gridspec(lines, COLUMNS)
    for panel, curves in panels:
        left, top, width, height = (panel.place[name] for name in ("x", "y", "w", "h"))
        axes = figure.add_subplot(grid[top : top + height, left : left + width])
        axes.set_title(panel.title, fontsize=8.5, weight="bold", loc="left")
        if panel.kind == "timeseries" and curves:
            _draw_graph(axes, panel, curves)
            continue
        axes.set(xticks=[], yticks=[])
        if panel.kind == "row":
            axes.set_axis_off()
        else:
            last = [[*values.values()][-1] for values in curves.values()]
            shown = " ".join(_shown(value, panel.unit) for value in last) or panel.no_value
            axes.text(0.5, 0.5, shown, ha="center", va="center", transform=axes.transAxes)
    return figure


def _draw_graph(axes: Axes, panel: DashboardPanel, curves: Curves) -> None:
    if panel.stacked:  # a series may begin late
        minutes = sorted({minute for values in curves.values() for minute in values})
        rows = [[values.get(minute, 0.0) for minute in minutes] for values in curves.values()]
        known = [[value if math.isfinite(value) else 0.0 for value in row] for row in rows]
        axes.stackplot(minutes, known, labels=list(curves), alpha=0.75)
    else:
        for name, values in curves.items():
            axes.plot(list(values), list(values.values()), lw=1.2, label=name)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.tick_params(labelsize=7, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.yaxis.set_major_formatter(lambda value, _: _shown(value, panel.unit))
    axes.xaxis.set_major_formatter("{x:g} min")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:LEGEND_NAMES], names[:LEGEND_NAMES], loc="upper center", ncols=LEGEND_NAMES,
        bbox_to_anchor=(0.45, -0.12), fontsize=7, frameon=False,
    )  # fmt: skip


def _shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return str(EngFormatter(UNITS.get(unit, ""))(float(f"{value:.3g}")))


if __name__ == "__main__":
    run_command(main)
