"""Load servers of the demonstration catalogue, and draw the dashboard from what Prometheus saw.

    python -m grace.bench.monitoring.picture --out docs/pictures/dashboard.png

Two servers run on this machine's CPU, and `prometheus` must be installed. The load rises beyond
what the servers can do and falls again. Some calls cannot be read. Meanwhile an index is published,
and some advertisers are stopped. Needs matplotlib (`plots`).
"""

import re
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from grace import configs
from grace.bench.load.client import OpenLoop, run_load
from grace.bench.load.options import out_file, parser_of, positive, run_command
from grace.bench.load.shots import Shot, read_shots
from grace.bench.monitoring.draw import Curve, draw
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
DPI = 100
TOP_ROWS = 2
TIMEOUT_SECONDS = 1.0
FAULTY_ONE_IN = 40
STOPPED = 9  # advertisers


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
    draw(panels, title).savefig(options.out, dpi=DPI)
    if options.top is not None:
        rows = [place for place, (panel, _) in enumerate(panels) if panel.kind == "row"]
        draw(panels[: rows[TOP_ROWS]], title).savefig(options.top, dpi=DPI)


def _observed(
    folder: Path, seconds: float, rate: float
) -> list[tuple[DashboardPanel, Sequence[Curve]]]:
    write_folder(preset_spec("demo"), folder / "catalogue")
    spec = BuildSpec(
        (folder / "catalogue" / "ads.parquet",),
        folder / "catalogue" / "targeting.yaml",
        folder / "snapshots",
    )
    build(spec, lambda step, done, total: None)
    shots = read_shots(folder / "catalogue" / "requests.jsonl", TIMEOUT_SECONDS)
    faulty = Shot(b"\xff", TIMEOUT_SECONDS)
    mixed = [each if number % FAULTY_ONE_IN else faulty for number, each in enumerate(shots, 1)]
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(folder, name)) for name in ("a", "b")]
        targets = [str(server.events("listening")[0]["metrics"]) for server in servers]
        prometheus = stack.enter_context(Prometheus(folder, targets, SCRAPE_SECONDS))
        time.sleep(2 * SCRAPE_SECONDS)
        begin = time.time()
        events = threading.Thread(target=_publish_and_stop, args=(spec, servers, seconds))
        events.start()
        with ThreadPoolExecutor() as callers:
            loads = [
                callers.submit(_load, server.address, mixed, seconds, rate) for server in servers
            ]
        events.join()
        for load in loads:
            load.result()
        end = begin + seconds
        names = dict(zip(targets, ("a", "b"), strict=True))
        return [
            (panel, _curves(prometheus, panel, begin, end, names))
            for panel in read_panels(DASHBOARD, RATE_INTERVAL)
        ]


def _server(folder: Path, name: str) -> RunningServer:
    config = write_server_config(
        *(folder / f"{name}.yaml", folder / "snapshots", CHECKPOINT),
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


def _publish_and_stop(spec: BuildSpec, servers: Sequence[RunningServer], seconds: float) -> None:
    time.sleep(PUBLISH_AT * seconds)
    build(spec, lambda step, done, total: None)
    time.sleep((STOP_AT - PUBLISH_AT) * seconds)
    snapshot = load_snapshot(spec.root)
    level = snapshot.schema.entities.index("advertiser")
    advertisers = snapshot.entities[level].ids[:STOPPED].tolist()
    for server in servers:
        update = UpdateAdsRequest(sequence=1, kind=UpdateAdsRequest.KIND_FULL)
        update.stop["advertiser"].ids.extend(advertisers)
        with AdminClient(server.admin_address) as admin:
            admin.update_ads(update, TIMEOUT_SECONDS)


def _curves(
    prometheus: Prometheus, panel: DashboardPanel, begin: float, end: float, names: dict[str, str]
) -> list[Curve]:
    """Return the curves of a panel, by server, with a short name of each server."""
    found = []
    for query in panel.queries:
        for series in prometheus.query_range(query.expr, begin, end, SCRAPE_SECONDS):
            at = series.labels.get("instance", "")
            labels = {**series.labels, "instance": names.get(at, at)}
            name = re.sub(r"{{(\w+)}}", lambda key: labels.get(key[1], ""), query.name)  # noqa: B023
            minutes = [(time - begin) / 60 for time in series.times]
            if series.has_number:
                found.append((labels["instance"], Curve(name, minutes, series.values)))
    found.sort(key=lambda each: each[0])
    return [curve for _, curve in found]


if __name__ == "__main__":
    run_command(main)
