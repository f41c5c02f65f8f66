"""Looks at CURRENT, on a separate thread: its folder may be on a network, where a read may hang."""

from collections.abc import Callable
from pathlib import Path

from grace.configs.errors import GraceError, SnapshotError
from grace.index.storage import Published, published, root_of, versions
from grace.index.storage.versions import CURRENT, some_of
from grace.server.errors import ServiceError
from grace.server.observe.logs import LOG
from grace.server.reload.pin import Pin
from grace.server.threads import DaemonThread


class Current:
    """What CURRENT names. It belongs to the event loop, and never blocks it."""

    def __init__(
        self,
        snapshots: Path,
        word: Callable[[GraceError | OSError], str],  # words an error in one line
        failed: Callable[[str], object],  # called with each new fault
        read: Callable[[Path], Published] = published,
    ) -> None:
        self.seen: Published | None = None  # the result of the last look that succeeded
        self.fault = ""  # why the latest look failed; empty if it succeeded
        self._snapshots = snapshots
        self._word = word
        self._failed = failed
        self._read = read
        self._thread = DaemonThread("grace-look")

    async def look(self) -> None:
        """Read CURRENT, however long that takes. Report a fault once, not at every look."""
        try:
            self.seen, fault = await self._thread.run(self._named), ""
        except (GraceError, OSError) as error:
            fault = self._word(error)
        except Exception as error:  # noqa: BLE001, the next look may work
            fault = f"internal error ({type(error).__name__}); the server's log has its place"
            if fault != self.fault:
                LOG.error("look_broke", exc_info=error)
        if fault and fault != self.fault:
            self._failed(fault)
        self.fault = fault

    async def look_now(self) -> None:
        await self.look()
        if self.fault:
            raise ServiceError("load_failed", self.fault)

    async def versions(self) -> tuple[int, ...]:
        """Return the versions in the root; raise `load_failed` if it cannot be read."""
        try:
            return await self._thread.run(lambda: versions(root_of(self._snapshots)))
        except (GraceError, OSError) as error:
            raise ServiceError("load_failed", self._word(error)) from None

    async def older(self, version: int, served: int, pin: Pin | None) -> int:
        """Return the version to roll back to; 0 asks for the newest below the served one.

        Raise `load_refused` if it is not there, or not an older one. While a pin holds, the version
        may also be between the pinned one and what the rollback left.
        """
        there = await self.versions()
        what, below = f"{served} is served", [each for each in there if each < served]
        if not version and below:
            return below[-1]
        if version:
            self._require(version, there)
        if version and pin is not None and pin.until_above > served:
            what = f"a rollback left {pin.until_above}"
            below = [each for each in there if each < pin.until_above]
        if version in below:
            return version
        has = f"{some_of(below)} below it; name one of them"
        if not below:
            has = f"no version below it, only {some_of(there)}; copy an older one there"
        raise ServiceError(
            "load_refused",
            f"snapshot_version: {version}: {what}, and {root_of(self._snapshots)} has {has}, or "
            "load another one (grace admin load)",
        )

    async def require(self, version: int) -> None:
        """Raise `load_refused` if the root has no such version."""
        self._require(version, await self.versions())

    def _require(self, version: int, there: tuple[int, ...]) -> None:
        if version not in there:
            root = root_of(self._snapshots)
            raise ServiceError(
                "load_refused",
                f"snapshot_version: {version}: not in {root}, which has {some_of(there)}; name one "
                "that is there",
            )

    def _named(self) -> Published:
        """Return what CURRENT names. A server may follow it, so it must name a version."""
        seen = self._read(self._snapshots)
        if seen.version is None:
            fault = "missing; make it anew with `grace publish ROOT VERSION`"
            raise SnapshotError(CURRENT, fault, self._snapshots)
        return seen
