"""Checks of a load before it reads arrays and weights, and the line that reports a fault.

Nothing here loads torch, so `grace serve` reports these faults at once.
"""

from grace.configs.eligibility import Eligibility
from grace.configs.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    GraceError,
    SnapshotError,
)
from grace.configs.serving import ServingConfig
from grace.index.storage.reader import open_snapshot
from grace.model.checkpoints.folder import MODEL_YAML, require_files, require_sids
from grace.model.definition.spec import load_spec
from grace.server.reload.pin_file import NAME


def require_loadable(config: ServingConfig) -> None:
    """Refuse a load if the current snapshot's manifest or the checkpoint's folder shows a fault.

    A server with a pin may serve another snapshot, or start without a current one. Then, only the
    load itself checks the snapshot.
    """
    manifest = None
    if config.state_dir is None or not (config.state_dir / NAME).exists():
        with open_snapshot(config.snapshots, None) as opened:
            manifest = opened.manifest
    require_files(config.checkpoint)
    file = config.checkpoint / MODEL_YAML
    spec = load_spec(file)
    if manifest is not None:
        require_sids(spec, str(file), manifest.sid_space, manifest.vocab_sizes)
    Eligibility.of(config.eligibility).require_length(spec.sid_length)
    config.generation.require_steps(spec.sid_length)
    config.generation.require_vocabulary(spec.vocab_sizes)


def start_fault(error: GraceError | OSError, config: ServingConfig, source: str = "") -> str:
    """Return one line that names the configuration's key, the file and the remedy.

    source  where the settings come from: a fault in the settings begins with it
    """
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
