"""The resources of this machine."""

import os


def available_cores() -> int:
    """Return the number of cores this process may use; a container may have fewer than its host."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
