"""Which version a server should serve: rules without files, threads or clocks."""

from dataclasses import dataclass

from grace.index.storage import Published


@dataclass(frozen=True, slots=True)
class Pin:
    """A rollback's decision to serve a version.

    until_above  the pin ends once CURRENT names a version above this one
    """

    version: int
    until_above: int

    def ends(self, seen: Published) -> bool:
        return seen.version is not None and seen.version > self.until_above


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a look at CURRENT.

    load   the version to load; None: the served one stays
    unpin  the pin has ended
    """

    load: int | None = None
    unpin: bool = False


def decide(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int | None
) -> Decision:
    """Return what to do now that CURRENT says `seen`.

    acted_on  what CURRENT said when the server last followed it, whether the load succeeded or
              failed; None: follow it in any case
    served    None if nothing is served yet

    So a version that failed is tried again only after a publish, and a version that an operator
    has loaded stays until the next one. CURRENT may go back as well as forth.
    """
    unpin = pin is not None and pin.ends(seen)
    if pin is not None and not unpin:
        return Decision(load=None if pin.version == served else pin.version)
    if seen.version in (None, served) or (seen == acted_on and not unpin):
        return Decision(unpin=unpin)
    return Decision(load=seen.version, unpin=unpin)


def pin_for(version: int, served: int, seen: Published | None, before: Pin | None) -> Pin:
    """Return the pin of a rollback from the served version to this one."""
    named = 0 if seen is None else seen.version or 0
    return Pin(version, max(served, named, 0 if before is None else before.until_above))
