"""The checks and the loading before the server is ready, and the line that words their faults."""

from contextlib import nullcontext
from pathlib import Path

import torch

from grace.configs.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    GraceError,
    InputError,
    SnapshotError,
)
from grace.configs.serving import ServingConfig
from grace.kernels import load_ops
from grace.server.engine.loading import (
    load_pair,
    memory_fault,
    precision_of,
    require_numbered_ids,
)
from grace.server.engine.serving_pair import ServingPair
from grace.server.engine.warm_up import warm_up, warm_up_requests
from grace.server.messages import Retrieval
from grace.server.scheduling.predictions import Predictions
from grace.server.stages.stages import Stages


def require_device(name: str) -> torch.device:
    """Return the device, if this machine and this version can compute on it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(
            f"device {name!r}: torch knows no such device; use cpu or cuda:0"
        ) from None
    # Checked before the GPU is used: torch's own answer would be a traceback.
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and gpus and (device.index or 0) >= gpus:
        raise DeviceError(
            f"device {name}: this machine has {gpus} CUDA GPUs that torch can use, numbered from "
            "0; name one of them, or use cpu"
        )
    load_ops(device)
    return device


def require_distinct_addresses(config: ServingConfig) -> None:
    """Refuse one address for two listeners by name: binding would only say that it is taken."""
    taken: dict[tuple[str, int], str] = {}
    for section, host, port in (
        ("listen", config.listen.host, config.listen.port),
        ("admin", config.admin.host, config.admin.port),
        ("metrics", config.metrics.host, config.metrics.port),
    ):
        first = taken.setdefault((host, port), section)
        if port and first != section:
            raise ConfigError(
                f"{section}: {host}:{port} is the address of {first} as well; choose another "
                f"{section}.port (port 0 takes a free one)"
            )


def require_folder_of(timeline: Path | None) -> None:
    """Refuse a trace that could not be written at the end."""
    if timeline is not None and not timeline.parent.is_dir():
        raise InputError(f"timeline: {timeline}: its folder does not exist; make it first")


def synthetic_requests(config: ServingConfig) -> tuple[Retrieval, ...]:
    """Return the requests to warm up with."""
    return warm_up_requests(config.warm_up, config.limits, config.generation)


def load_and_warm_up(
    config: ServingConfig,
    device: torch.device,
    stages: Stages,
    predictions: Predictions,
    requests: tuple[Retrieval, ...],
) -> ServingPair:
    """Load the pair that the configuration names and run `requests` through every stage."""
    # Kernels are launched on the thread's current device, which may be another GPU.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        require_numbered_ids(config.limits, config.generation)
        try:
            pair = load_pair(
                config.snapshots,
                config.checkpoint,
                config.generation,
                device,
                precision_of(config.precision, device),
                config.memo_bytes,
                config.threads.post,
            )
        except Exception as error:  # too little memory has no one type
            fault = memory_fault(error)
            if fault is None:
                raise
            raise ConfigError(
                f"device {config.device}: snapshot and checkpoint do not fit into memory: {fault}; "
                "take smaller ones, or a larger machine"
            ) from None
        warm_up(stages, pair, config.generation, requests, predictions.observe)
    return pair


def start_fault(error: GraceError | OSError, config: ServingConfig) -> str:
    """Return one line that names the configuration's key, the file and the remedy."""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    text = str(error)
    if isinstance(error, SnapshotError):
        return f"snapshots: {text}; build or publish another version"
    if isinstance(error, CheckpointError):
        remedy = "" if ";" in text else "; name the folder of another checkpoint"
        return f"checkpoint: {text}{remedy}"
    if isinstance(error, ConfigError):
        return text
    for key, path, remedy in (
        ("snapshots", config.snapshots, "name the folder that `grace build` wrote to"),
        ("checkpoint", config.checkpoint, "name a folder that `grace train` or an import made"),
        ("warm_up", config.warm_up, "correct it, or name another file"),
    ):
        if path is not None and text.startswith((str(path), str(path.absolute()))):
            return f"{key}: {text}" if ";" in text else f"{key}: {text}; {remedy}"
    return text
