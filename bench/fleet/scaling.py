"""`grace bench fleet`: one server for each GPU of this host, and Envoy in front of them.

direct           the first server, without Envoy
Envoy, N servers Envoy over all servers
Envoy, 1 server  Envoy over the first server, while the others have no load

alone            one request under way, only with one server
load             a rate for each server, Poisson arrivals
saturation       a closed loop: 64 requests under way for each server

All connections have TLS with certificates of both sides. Envoy runs with docker/envoy/envoy.yaml
and as many threads as in docker/kubernetes. `envoy_cpu_ms` is its processor time for each answered
call, and `cpu` each thread's share of a core, by process group.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from grace.bench.fleet.certificates import Identities
from grace.bench.fleet.envoy import SHIPPED_CONCURRENCY, Envoy, server_name
from grace.bench.gpu.subjects import served as service
from grace.bench.gpu.subjects.workload import Workload
from grace.bench.load.client import ClosedLoop, Load, OpenLoop
from grace.bench.load.thread_times import ThreadTimes, watched_threads
from grace.bench.result_file import Row
from grace.bench.running_server import RunningServer
from grace.configs.eligibility import MatcherMode

RATE, FP8_RATE = 1200.0, 1700.0
"""Requests a second for each server."""

_MODE = MatcherMode.EXACT
_TINY_SERVERS = 2


def measure(work: Workload) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=service.roomy_folder()) as name:
        folder = Path(name)
        identities = Identities.write(folder, server_name())  # first, as it may fail
        files = service.write_files(work, folder)
        for precision in work.options.precisions:
            served = service.Served(
                work.options, files, _MODE, precision, identities.server_section
            )
            for row in _of_precision(served, identities):
                facts = {"mode": _MODE.value, "precision": precision, "tls": "both ways"}
                yield {"measure": row["measure"], **facts, **row}


def _of_precision(served: service.Served, identities: Identities) -> Iterator[Row]:
    options = served.options
    servers = [
        served.server(f"server{number}", served.many, environment=environment)
        for number, environment in enumerate(_environments(torch.device(options.device)), 1)
    ]
    with _started(servers):
        yield from _rows(served, identities, servers[:1])
        for fronted in (servers, servers[:1]) if len(servers) > 1 else (servers,):
            folder = served.files.folder / f"envoy-{served.precision}-{len(fronted)}"
            folder.mkdir()
            threads = 1 if options.tiny else SHIPPED_CONCURRENCY
            with Envoy(folder, identities, [each.address for each in fronted], threads) as envoy:
                yield from _rows(served, identities, fronted, envoy)


def _rows(
    served: service.Served,
    identities: Identities,
    servers: Sequence[RunningServer],
    envoy: Envoy | None = None,
) -> Iterator[Row]:
    """Load the servers through Envoy, or the first one directly."""
    count, options = len(servers), served.options
    many = served.many._replace(clients=served.many.clients * count)
    in_flight = count * (service.TINY_IN_FLIGHT if options.tiny else service.IN_FLIGHT)
    (rate,) = served.rates((FP8_RATE if served.precision == "fp8" else RATE,))
    loads: dict[str, tuple[Load, service.LoadProcesses]] = {
        "alone": (ClosedLoop(1, options.seconds), many._replace(clients=1, connections=1)),
        "load": (OpenLoop(count * rate, options.seconds), many),
        "saturation": (ClosedLoop(in_flight, options.seconds), many),
    }
    address = servers[0].address if envoy is None else envoy.address
    variant = "direct" if envoy is None else f"Envoy, {count} server{'s' if count > 1 else ''}"
    groups = {f"server {number}": server.pid for number, server in enumerate(servers, 1)}
    if envoy is not None:
        groups["Envoy"] = envoy.pid
    for name, (load, processes) in loads.items():
        if name == "alone" and count > 1:
            continue
        spent = _envoy_counts(envoy)
        with ExitStack() as stack:
            watches = {
                group: stack.enter_context(watched_threads(pid)) for group, pid in groups.items()
            }
            result = service.latencies(
                address, served.files, load, processes, identities.client_tls
            )
        yield {
            "measure": name,
            "variant": variant,
            "servers": count,
            **service.load_row(load, result, processes),
            **_envoy_row(spent, _envoy_counts(envoy), result["ok"]),
            "cpu": {group: service.busiest(watch, result) for group, watch in watches.items()},
        }


def _envoy_counts(envoy: Envoy | None) -> tuple[float, int] | None:
    """Return Envoy's processor seconds and the calls that it repeated, so far."""
    if envoy is None:
        return None
    seconds = ThreadTimes.of_group(envoy.pid).seconds
    return sum(seconds.values()), envoy.counted("upstream_rq_retry")


def _envoy_row(
    before: tuple[float, int] | None, after: tuple[float, int] | None, answered: int
) -> Row:
    if before is None or after is None:
        return {}
    seconds, retries = after[0] - before[0], after[1] - before[1]
    each = round(1e3 * seconds / answered, 3) if answered else None
    return {"envoy_cpu_ms": each, "envoy_retries": retries}


def _environments(device: torch.device) -> list[Mapping[str, str]]:
    """Return the variables that give each server its GPU. On a CPU, two servers share it."""
    if device.type != "cuda":
        return [{}] * _TINY_SERVERS
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names]


@contextmanager
def _started(servers: Sequence[RunningServer]) -> Iterator[None]:
    """Start all servers at the same time. The stack stops them after the block."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(stack.enter_context, servers))
        yield
