"""The files, servers and loads of `grace bench serve` and `grace bench fleet`."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import yaml
from google.protobuf.json_format import MessageToJson

from grace.bench.gpu.subjects.catalogue import FIRST_VERSION, Catalogue, full_requests
from grace.bench.gpu.subjects.workload import Workload, random_weights
from grace.bench.load.client import Load, OpenLoop, ServerTimes, Target
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import load_result
from grace.bench.load.shots import Shot
from grace.bench.load.thread_times import ThreadWatch, watched_threads
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row
from grace.bench.running_server import RunningServer, write_server_config
from grace.client import Tls
from grace.configs.eligibility import MatcherMode
from grace.model.checkpoints.checkpoint import save_checkpoint
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.engine.precision import PRECISIONS, Precision

REQUESTS = 1024
IN_FLIGHT = 64
"""Four full batches: with so many calls under way, the queue of a server is never empty."""

TINY_IN_FLIGHT = 8

EDGE_SHARE = 0.1
"""Of a run, at either end, where it is not steady."""

TINY_RATES = (20.0,)

_TINY_REQUESTS = 16
_WARM_UP_REQUESTS = 16
_NO_SHEDDING_MS = 600_000.0
"""A closed loop measures how much a server can do, and queues for that."""

_START_SECONDS = 300.0  # the paper's catalogue and model are gigabytes to load
_POST_THREADS = 8
_MEMORY_FOLDER = Path("/dev/shm")
_FILES_BYTES = 16 << 30


class ServedFiles(NamedTuple):
    folder: Path
    snapshots: Path
    checkpoint: Path
    profiles: Path
    warm_up: Path
    catalogue: Catalogue
    shots: tuple[Shot, ...]


class LoadProcesses(NamedTuple):
    front_ends: int  # of the server, which speak gRPC
    clients: int  # that make a load
    connections: int  # of each client


ONE = LoadProcesses(front_ends=0, clients=1, connections=1)
MANY = LoadProcesses(front_ends=4, clients=6, connections=2)
TINY = LoadProcesses(front_ends=1, clients=1, connections=2)


def write_files(work: Workload, folder: Path, last: int = FIRST_VERSION) -> ServedFiles:
    """Write what servers need; `last` is the last version of the snapshot."""
    catalogue = work.catalogue()
    snapshots = catalogue.written(folder, last)
    spec = replace(work.spec, sid_space=catalogue.spec.sid_space)
    checkpoint = _checkpoint(work.device, spec, work.options.commit_cache or folder)
    users = catalogue.attributes(0, _TINY_REQUESTS if work.options.tiny else REQUESTS)
    messages = full_requests(spec, users, seed=1)
    warm_up = folder / "warm-up.jsonl"
    head = [MessageToJson(message, indent=None) for message in messages[:_WARM_UP_REQUESTS]]
    warm_up.write_text("".join(f"{line}\n" for line in head), encoding="utf-8")
    profile = {"beams": list(work.dynamic.beams), "num_sids": work.dynamic.num_sids}
    generation = {"max_batch": work.batch, "default_profile": "full", "profiles": {"full": profile}}
    profiles = folder / "profiles.yaml"
    profiles.write_text(yaml.safe_dump({"generation": generation}), encoding="utf-8")
    shots = tuple(Shot(message.SerializeToString()) for message in messages)
    return ServedFiles(folder, snapshots, checkpoint, profiles, warm_up, catalogue, shots)


def _checkpoint(device: torch.device, spec: EncoderDecoderSpec, folder: Path) -> Path:
    """Write a checkpoint of random weights, unless the folder has one of this specification."""
    name = hashlib.sha256(repr(spec).encode()).hexdigest()[:12]
    checkpoint = folder / f"checkpoint-{name}"
    if not checkpoint.exists():
        half = PRECISIONS["bf16"]  # as checkpoints store it: the tables are gigabytes
        model = random_weights(spec, device, features=half)
        save_checkpoint(model.to(torch.device("cpu"), half), checkpoint)
    return checkpoint


def roomy_folder() -> Path | None:
    """Return a folder in memory, if it has room for catalogue and checkpoint; None: anywhere."""
    folder = _MEMORY_FOLDER
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    return folder if shutil.disk_usage(folder).free >= _FILES_BYTES else None


class Served(NamedTuple):
    """The facts that servers of one mode and precision share; `tls` is their listen.tls."""

    options: BenchOptions
    files: ServedFiles
    mode: MatcherMode
    precision: Precision
    tls: Mapping[str, str] | None = None

    @property
    def many(self) -> LoadProcesses:
        return TINY if self.options.tiny else MANY

    def rates(self, usual: Sequence[float]) -> Sequence[float]:
        return self.options.rates or (TINY_RATES if self.options.tiny else usual)

    def server(
        self,
        name: str,
        processes: LoadProcesses,
        *arguments: str | Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> RunningServer:
        """Return a server. It loads another version only when Admin asks for it."""
        name, folder = f"{self.mode}-{self.precision}-{name}", self.files.folder
        state = folder / f"{name}.state"
        state.mkdir()
        config = write_server_config(
            folder / f"{name}.yaml",
            self.files.snapshots,
            self.files.checkpoint,
            self.files.profiles,
            warm_up=str(self.files.warm_up),
            device=self.options.device,
            precision=self.precision,
            eligibility=self.mode.value,
            threads={"post": _POST_THREADS},
            batching={"target_queue_ms": _NO_SHEDDING_MS},
            listen={"front_ends": processes.front_ends, "tls": self.tls},
            state_dir=str(state),
            watch_seconds=0,
        )
        log = folder / f"{name}.log"
        return RunningServer(
            config, log, *arguments, start_seconds=_START_SECONDS, environment=environment
        )


def latencies(
    address: str, files: ServedFiles, load: Load, processes: LoadProcesses, tls: Tls | None = None
) -> dict[str, Any]:
    """Make the load from other processes, and return our client's own part of the result."""
    target = Target(address, files.shots, processes.connections, tls)
    run = run_together(target, load, processes.clients, apart=True)
    result = load_result(run, load, processes.connections, None)
    return {**result["grace"], "seconds": result["total"] / 1e9}


def load_server(
    server: RunningServer, files: ServedFiles, load: Load, processes: LoadProcesses
) -> Row:
    """Load the server and return a row; the threads' shares of a core leave out both run ends."""
    with watched_threads(server.pid) as watch:
        own = latencies(server.address, files, load, processes)
    return {**load_row(load, own, processes), "cpu": busiest(watch, own)}


def alone_facts(alone: Row) -> Row:
    """Return the row of a load that was made alone, for the row of the same load with others."""
    names = "p50_ms", "p99_ms", "errors", "withdrawn", "valid"
    return {f"alone_{name}": alone[name] for name in names}


def busiest(watch: ThreadWatch, own: Mapping[str, Any]) -> dict[str, float]:
    """Return the threads' shares of a core in the steady part of a load."""
    began, seconds = own["began"], own["seconds"]
    edge = EDGE_SHARE * seconds
    return watch(began + edge, began + seconds - edge)


def load_row(load: Load, own: Mapping[str, Any], processes: LoadProcesses) -> Row:
    """Return the row of a load; `own` is what `latencies` returned."""
    seconds = own["seconds"]
    answered = round(own["ok"] / seconds, 1)
    latency = own["ms"]["latency_ok"] or dict.fromkeys(("p50", "p99", "p99.9", "max"))
    return {
        **(
            {"rps": load.rate, "answered_rps": answered}
            if isinstance(load, OpenLoop)
            else {"rps": answered, "seconds": seconds}
        ),
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "p999_ms": latency["p99.9"],
        "max_ms": latency["max"],
        "errors": own["failed"],
        "withdrawn": own["withdrawn"],
        "valid": own["valid"],
        "client_late_p99_ms": own["ms"]["lateness"] and own["ms"]["lateness"]["p99"],
        "client_processes": processes.clients,
        "connections": processes.clients * processes.connections,
        "front_ends": processes.front_ends,
        "stages_p50_ms": {
            name: own["ms"][name] and own["ms"][name]["p50"]
            for name in (*ServerTimes._fields, "overhead")
        },
    }
