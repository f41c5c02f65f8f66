"""The rules that decide which version a server serves, without files, threads or clocks."""

from dataclasses import dataclass

from grace.index.storage import Published


@dataclass(frozen=True, slots=True)
class Pin:
    """The version that a rollback keeps a server at.

    until_above  the pin ends once the server serves a version from CURRENT above this one
    """

    version: int
    until_above: int

    def ends(self, seen: Published) -> bool:
        return seen.version is not None and seen.version > self.until_above


def decide(seen: Published, pin: Pin | None, served: int) -> int | None:
    """Return the version to load after a look at CURRENT; None: keep the served one.

    CURRENT may name an older version, too.
    """
    version = seen.version if pin is None or pin.ends(seen) else pin.version
    return None if version == served else version


def pin_for(version: int, served: int, seen: Published | None, before: Pin | None) -> Pin:
    """Return the pin of a rollback from version `served` to `version`.

    The pin outlasts whatever CURRENT names already, and never ends earlier than the pin before it.
    """
    named = 0 if seen is None else seen.version or 0
    return Pin(version, max(served, named, 0 if before is None else before.until_above))
