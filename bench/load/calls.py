"""What became of the calls of a load."""

from dataclasses import dataclass
from datetime import datetime

import grpc

__all__ = ["STAGES", "Call", "LoadRun", "ServerTimes", "status_name"]

STAGES = ("input", "features", "generate", "post")


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Microseconds, from the reply."""

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
    """Times are in seconds since the load's begin.

    intended   when the load meant it to be made: latency counts from here
    sent       when the client came to make it
    status     as ghz writes it, such as OK or ResourceExhausted
    reason     the server's `grace-reason`, empty if it gave none
    withdrawn  this client cancelled it, on purpose or at the load's end: no error of the server's
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
        """How far the client itself was behind."""
        return self.sent - self.intended

    @property
    def error(self) -> str:
        """As ghz words it; empty for what is no error."""
        if self.status == "OK" or self.withdrawn:
            return ""
        return f"rpc error: code = {self.status} desc = {self.text}"


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A load that is over.

    seconds        from the begin to the last call's end
    warm_up_calls  made before the begin, and not among `calls`
    processes      that made it together
    """

    address: str
    began: datetime
    seconds: float
    calls: tuple[Call, ...]
    warm_up_calls: int
    processes: int = 1


def status_name(code: grpc.StatusCode) -> str:
    """The name that Go, and so ghz, has for a status."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return code.name.title().replace("_", "")
