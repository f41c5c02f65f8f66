"""The checks before the server loads anything, and the line that reports a fault."""

import resource

from grace.configs.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    GraceError,
    SnapshotError,
)
from grace.configs.serving import ServingConfig
from grace.server.transport.addresses import is_loopback

_MEMORY_WORDS = ("out of memory", "allocate", "ALLOC_FAILED", "bad_alloc", "start new thread")
"""Words in the errors of torch, CUDA, cuBLAS, numpy, C++ and Python that mean too little memory."""

OTHER_DESCRIPTORS = 256
"""The descriptors that a process needs in addition: files, libraries, Admin, metrics."""


def require_descriptors(connections: int) -> None:
    """Raise this process's limit of descriptors if it is too low, or refuse the start.

    Relays inherit the limit. At the limit, gRPC fails to accept connections without an error.
    """
    needed = connections + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"limits.connections: {connections} connections need {needed} descriptors, and this "
            f"process may have {hard} (RLIMIT_NOFILE): raise this limit (ulimit -Hn, systemd's "
            f"LimitNOFILE, docker's --ulimit nofile), or lower limits.connections"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def require_guarded_admin(config: ServingConfig) -> None:
    """Refuse an Admin that other machines can reach without a client certificate."""
    admin = config.admin
    asks = admin.tls is not None and admin.tls.client_ca is not None
    if not asks and not is_loopback("admin", admin.host, admin.port):
        raise ConfigError(
            f"admin.host: {admin.host} is beyond loopback, and Admin discloses the catalogue; give "
            "admin.tls with client_ca, or listen on 127.0.0.1"
        )


def too_little_memory(error: Exception, config: ServingConfig) -> ConfigError | None:
    """Return a one-line fault if memory or a kernel's resources were too little, else None."""
    text = str(error).partition("\n")[0]
    if isinstance(error, MemoryError):
        text = text or "out of memory"
    elif isinstance(error, RuntimeError):  # torch.OutOfMemoryError is one, too
        if not any(word in text for word in _MEMORY_WORDS):
            return None
    elif type(error).__name__ != "OutOfResources":  # compared by name, since Triton may be missing
        return None
    generation = config.generation
    return ConfigError(
        f"device {config.device}: too little memory: {text}; give a smaller memo_bytes (now "
        f"{config.memo_bytes}), a smaller generation.max_batch (now {generation.max_batch}), fewer "
        f"or narrower generation.profiles (now {', '.join(generation.profiles)}), a smaller "
        "snapshot or checkpoint, or take a larger machine"
    )


def start_fault(error: GraceError | OSError, config: ServingConfig, source: str = "") -> str:
    """Return one line with key, file and remedy. `source` names where the settings come from."""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    text = str(error)
    if isinstance(error, SnapshotError):
        remedy = "" if ";" in text else "; build or publish another version"
        return f"snapshots: {text}{remedy}"
    if isinstance(error, CheckpointError):
        remedy = "" if ";" in text else "; name the folder of another checkpoint"
        return f"checkpoint: {text}{remedy}"
    if isinstance(error, ConfigError | DeviceError):
        return f"{source}: {text}" if source else text
    for key, path, remedy in (
        ("snapshots", config.snapshots, "name the folder that `grace build` wrote to"),
        ("checkpoint", config.checkpoint, "name a folder that `grace train` or an import made"),
        ("warm_up", config.warm_up, "correct it, or name another file"),
    ):
        if path is not None and text.startswith((str(path), str(path.absolute()))):
            return f"{key}: {text}" if ";" in text else f"{key}: {text}; {remedy}"
    return text
