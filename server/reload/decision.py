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


def decide(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int | None
) -> int | None:
    """Return the version to load after a look at CURRENT; None: keep the served one.

    seen      what CURRENT names now
    acted_on  what CURRENT named when the server last acted on it, whether the load succeeded or
              failed; None: act on it in any case
    pin       the pin of a rollback, if there is one
    served    the served version; None if nothing is served yet

    So the server tries a version that failed again only after a publish. A version that an operator
    has loaded stays until the next publish. CURRENT may name an older version, too.
    """
    if pin is not None and not pin.ends(seen):
        return None if pin.version == served else pin.version
    return None if seen.version == served or seen == acted_on else seen.version


def pin_for(version: int, served: int, seen: Published | None, before: Pin | None) -> Pin:
    """Return the pin of a rollback from version `served` to `version`.

    The pin outlasts whatever CURRENT names already, and never ends earlier than the pin before it.
    """
    named = 0 if seen is None else seen.version or 0
    return Pin(version, max(served, named, 0 if before is None else before.until_above))
