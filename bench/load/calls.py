"""The calls of a load: when each was due, was made and ended, and with what status."""

from dataclasses import dataclass
from datetime import datetime

import grpc

STAGES = ("input", "features", "generate", "post")


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """The timings of one reply, in microseconds."""

    queue: int
    input: int
    features: int
    generate: int
    post: int

    @property
    def all(self) -> int:
        return self.queue + self.input + self.features + self.generate + self.post


@dataclass(frozen=True, slots=True)
class Call:
    """One call. Times are in seconds since the load began.

    intended   when the load meant to make the call: latency counts from here
    sent       when the client made it
    status     in ghz's spelling, such as OK or ResourceExhausted
    reason     the server's `grace-reason`, empty if it gave none
    withdrawn  this client cancelled the call, on purpose or at the end of the load: the server made
               no error
    """

    intended: float
    sent: float
    ended: float
    status: str
    reason: str = ""
    text: str = ""
    server: ServerTimes | None = None
    withdrawn: bool = False

    @property
    def latency(self) -> float:
        return self.ended - self.intended

    @property
    def lateness(self) -> float:
        """The client's own delay."""
        return self.sent - self.intended

    @property
    def error(self) -> str:
        """The error in ghz's words; empty for a call that succeeded or was withdrawn."""
        if self.status == "OK" or self.withdrawn:
            return ""
        return f"rpc error: code = {self.status} desc = {self.text}"


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A finished load.

    seconds        from the begin to the end of the last call
    warm_up_calls  calls made before the begin; `calls` leaves them out
    processes      the number of client processes that made the load together
    """

    address: str
    began: datetime
    seconds: float
    calls: tuple[Call, ...]
    warm_up_calls: int
    processes: int = 1


def status_name(code: grpc.StatusCode) -> str:
    """Return Go's name of a status, which is also ghz's."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return code.name.title().replace("_", "")
