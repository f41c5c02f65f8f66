"""Compare the address space that a server needs with the limit of its process.

This must run before torch and gRPC are imported. Their libraries abort if they get too little, and
no code of ours can turn that into an error.
"""

import resource
from collections.abc import Iterable
from pathlib import Path

from grace.configs.errors import ConfigError
from grace.configs.regular_files import read_regular
from grace.configs.serving import ServingConfig

LEAST_BYTES = 2 << 30  # the libraries and the threads' stacks and heaps: 1.8 GB on two cores

_GIB = 1 << 30
_MOST_DIGITS = 64


def require_address_space(config: ServingConfig) -> None:
    """Refuse a limit (RLIMIT_AS) below what the libraries and the loaded files take."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    files = _bytes_of(config.checkpoint.glob("*.safetensors")) + _current_bytes(config.snapshots)
    needed = LEAST_BYTES + files
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigError(
            f"address space: this process may have {limit / _GIB:.1f} GiB (RLIMIT_AS, `ulimit -v`) "
            f"and needs at least {needed / _GIB:.1f} GiB, {files / _GIB:.1f} of it for snapshot "
            "and checkpoint; remove the limit, and bound the memory with a control group instead"
        )


def _current_bytes(snapshots: Path) -> int:
    """Return the size of the current version's arrays, or 0: the load reports a missing one."""
    try:
        current = read_regular(snapshots / "CURRENT", _MOST_DIGITS).decode("ascii").strip()
    except (OSError, ValueError):
        return 0
    return _bytes_of((snapshots / current).glob("*.npy")) if current.isdigit() else 0


def _bytes_of(files: Iterable[Path]) -> int:
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
