"""The most memory that this process has held."""

import resource
import sys

__all__ = ["peak_memory"]


def peak_memory() -> int:
    """Bytes, since the process began."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
