"""The resources of this machine."""

import os


def available_cores() -> int:
    """Return the number of cores this process may use; a container may have fewer than its host."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def yield_cores_while_waiting() -> None:
    """Let OpenMP threads sleep while they wait for each other; call this before torch is loaded.

    By default they spin. Then a step takes five times as long if another program uses one of the
    cores. OpenMP reads this setting once, from the environment. A value that the caller set wins.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
