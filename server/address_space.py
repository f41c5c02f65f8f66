"""The address space that a server needs, compared with what its process may have.

It is asked before torch and gRPC are imported: their libraries abort where they get too little,
and no code of ours can turn that into an error.
"""

import resource
from collections.abc import Iterable
from pathlib import Path

from grace.configs.errors import ConfigError
from grace.configs.serving import ServingConfig

LEAST_BYTES = 2 << 30
"""For the libraries and the threads' stacks and heaps: 1.8 GB were measured on two cores."""

_GIB = 1 << 30


def require_address_space(config: ServingConfig) -> None:
    """Refuse a limit (RLIMIT_AS) below what the libraries and the loaded files take."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    files = _bytes_of(config.checkpoint.glob("*.safetensors")) + _current_bytes(config.snapshots)
    needed = LEAST_BYTES + files
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigError(
            f"address space: this process may have {limit / _GIB:.1f} GiB (RLIMIT_AS, `ulimit -v`) "
            f"and needs at least {needed / _GIB:.1f} GiB, {files / _GIB:.1f} of it for snapshot "
            "and checkpoint; take the limit away, and bound its memory by a control group instead"
        )


def _current_bytes(snapshots: Path) -> int:
    """The size of the current version's arrays; 0 if the folder has none: the load says why."""
    try:
        current = (snapshots / "CURRENT").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return 0
    return _bytes_of((snapshots / current).glob("*.npy")) if current.isdigit() else 0


def _bytes_of(files: Iterable[Path]) -> int:
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
