"""A request's user while it is still the bytes it came in.

C++ sees at once whether they are plainly right: well-formed, UTF-8, within the limits
(`native/src/users_check.cpp`). Only then are they left as they are; what is not is for protobuf to
read and for `grace.server.stages.requests` to name.
"""

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grace.native.loader import declare, load_library_with_lock
from grace.proto.retrieval_pb2 import RetrieveRequest, Values

__all__ = ["UserLimits", "WireUser", "split_user"]

_Span = c_int64 * 3

# A microsecond on the event loop: giving the lock away and waiting for it would take longer.
_check = declare(
    "grace_users_check", c_char_p, c_int64, c_void_p, c_void_p, library=load_library_with_lock
)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """At most so many: names, bytes of each, values of a name, of all together, bytes of each."""

    names: int
    name_bytes: int
    values: int
    together: int
    value_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class WireUser(Mapping[str, Sequence[str]]):
    """The bytes of a grace.v1.RetrieveRequest that has a `user` and nothing else."""

    content: bytes = b""

    @staticmethod
    def of(user: Mapping[str, Values]) -> "WireUser":
        """As protobuf writes them: no name twice."""
        message = RetrieveRequest()
        for name, values in user.items():
            message.user[name].CopyFrom(values)
        return WireUser(message.SerializeToString())

    def read(self) -> dict[str, list[str]]:
        user = RetrieveRequest.FromString(self.content).user
        return {name: list(given.values) for name, given in user.items()}

    def __getitem__(self, name: str) -> Sequence[str]:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())


def split_user(message: bytes, limits: UserLimits) -> tuple[bytes, WireUser] | None:
    """A RetrieveRequest's bytes without its user, and that, if it is plainly right."""
    span = _Span()
    _check(message, len(message), _limits(limits), span)
    plain, begin, end = span
    if not plain:
        return None
    if not end:
        return message, WireUser()
    return message[:begin] + message[end:], WireUser(message[begin:end])


@lru_cache(maxsize=16)
def _limits(limits: UserLimits) -> Any:
    most = (limits.names, limits.name_bytes, limits.values, limits.together, limits.value_bytes)
    return (c_int64 * 5)(*most)
