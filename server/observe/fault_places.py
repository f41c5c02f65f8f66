"""What a log may say of an unexpected exception: where it was raised, never its message.

A message may quote an attribute value; a file and a line cannot.
"""

import traceback
from pathlib import Path

__all__ = ["places_of"]

MOST_PLACES = 20
"""Of one exception, the innermost ones: an endless recursion has thousands."""


def places_of(error: BaseException) -> str:
    """`file:line` of each call, outermost first, of the error and then of what caused it."""
    chains: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = traceback.extract_tb(cause.__traceback__, limit=-MOST_PLACES)
        places = " > ".join(f"{_short(frame.filename)}:{frame.lineno}" for frame in frames)
        chains.append(f"{type(cause).__name__} at {places or 'no known place'}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "; from ".join(chains)


def _short(filename: str) -> str:
    """The file and its folder: enough to find it, and the same on every machine."""
    return "/".join(Path(filename).parts[-2:])
