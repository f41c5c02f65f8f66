"""The rules that decide which version a server serves, without files, threads or clocks."""

from dataclasses import dataclass

from grace.index.storage import Published


@dataclass(frozen=True, slots=True)
class Pin:
    """The version that a rollback keeps a server at.

    until_above  the pin ends once CURRENT names a version above this one
    """

    version: int
    until_above: int

    def ends(self, seen: Published) -> bool:
        return seen.version is not None and seen.version > self.until_above


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a look at CURRENT.

    load   the version to load; None: keep the served one
    unpin  whether the pin has ended
    """

    load: int | None = None
    unpin: bool = False


def decide(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int | None
) -> Decision:
    """Return what to do after a look at CURRENT.

    seen      what CURRENT names now
    acted_on  what CURRENT named when the server last acted on it, whether the load succeeded or
              failed; None: act on it in any case
    pin       the pin of a rollback, if there is one
    served    the served version; None if nothing is served yet

    So the server tries a version that failed again only after a publish. A version that an operator
    has loaded stays until the next publish. CURRENT may name an older version, too.
    """
    unpin = pin is not None and pin.ends(seen)
    if pin is not None and not unpin:
        return Decision(load=None if pin.version == served else pin.version)
    if seen.version in (None, served) or (seen == acted_on and not unpin):
        return Decision(unpin=unpin)
    return Decision(load=seen.version, unpin=unpin)


def pin_for(version: int, served: int, seen: Published | None, before: Pin | None) -> Pin:
    """Return the pin of a rollback from version `served` to `version`.

    The pin outlasts whatever CURRENT names already, and never ends earlier than the pin before it.
    """
    named = 0 if seen is None else seen.version or 0
    return Pin(version, max(served, named, 0 if before is None else before.until_above))
