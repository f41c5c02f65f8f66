"""Read CURRENT on a separate thread: its folder may be on a network, and a read may hang."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from grace.configs.errors import GraceError
from grace.index.storage import Published, published, root_of, versions
from grace.server.daemon_thread import DaemonThread
from grace.server.errors import load_failed
from grace.server.observe.logs import LOGGER

_LOG = logging.getLogger(LOGGER)


class Current:
    """Belongs to the event loop, which it never holds up.

    seen   the last look that could be read
    fault  why the latest look failed, or that it hangs; empty if it did not
    """

    def __init__(
        self,
        snapshots: Path,
        word: Callable[[GraceError | OSError], str],
        failed: Callable[[str], object],
        read: Callable[[Path], Published] = published,
        look_seconds: float = 10.0,
    ) -> None:
        """
        word          makes one line of an error
        failed        gets a new fault
        look_seconds  after these, a look hangs
        """
        self.seen: Published | None = None
        self.fault = ""
        self._snapshots = snapshots
        self._word = word
        self._failed = failed
        self._read = read
        self._look_seconds = look_seconds
        self._thread = DaemonThread("grace-look")

    async def look(self) -> None:
        """Read CURRENT, however long it takes. Report a fault once."""
        look = self._thread.run(lambda: self._read(self._snapshots))
        await asyncio.wait((look,), timeout=self._look_seconds)
        if not look.done():
            self._note(
                f"snapshots: {self._snapshots}: CURRENT could not be read within "
                f"{self._look_seconds:g} s; see whether the folder hangs"
            )
        try:
            self.seen, fault = await look, ""
        except (GraceError, OSError) as error:
            fault = self._word(error)
        except Exception as error:  # noqa: BLE001, the next look may work
            fault = f"internal error ({type(error).__name__}); the server's log has its place"
            if fault != self.fault:
                _LOG.error("look broke", exc_info=error, extra={"event": "look_broke"})
        self._note(fault)

    async def look_now(self) -> None:
        """Look, and raise `load_failed` if that fails or hangs."""
        if not self._thread.busy or not self.fault:
            look = asyncio.ensure_future(self.look())
            # A look under way may have begun too early, so this one waits for two.
            await asyncio.wait((look,), timeout=2 * self._look_seconds)
        if self.fault:
            raise load_failed(self.fault)

    async def versions(self) -> tuple[int, ...]:
        """Return the versions that are there; raise `load_failed` if that cannot be seen."""
        try:
            return await self._thread.run(lambda: versions(root_of(self._snapshots)))
        except (GraceError, OSError) as error:
            raise load_failed(self._word(error)) from None

    def _note(self, fault: str) -> None:
        if fault and fault != self.fault:
            self._failed(fault)
        self.fault = fault
