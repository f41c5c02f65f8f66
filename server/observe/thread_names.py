"""Names of threads that the kernel knows, for `top -H` and the like.

Python gives its threads' names to the kernel from 3.14 on. Before, a thread has the name of the one
that started it.
"""

import ctypes
import sys

_MOST_BYTES = 15  # longer names would be cut
_SET_NAME = 15  # prctl's PR_SET_NAME


def name_this_thread(name: str) -> None:
    """Name the thread; the main thread's name is the process's as well."""
    encoded = name.encode()
    assert len(encoded) <= _MOST_BYTES, name
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, encoded, 0, 0, 0)
