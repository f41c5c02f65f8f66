"""User rows: the request side of every test, encoded once per request.

The forms of the schema's components define how to encode what a request asks (index/forms).
C++ reads them from the bytes of a grace.v1.RetrieveRequest, without the interpreter lock.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import AnyArray, Room, new_arrays
from grace.configs.errors import InputError, RequestError
from grace.index.forms.component import Component
from grace.index.forms.components import components_of
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues
from grace.native.loader import declare
from grace.native.wire import read_batch
from grace.proto.retrieval_pb2 import RetrieveRequest

UserAttributes = Mapping[str, Sequence[str] | float]
"""One request's user: name -> values, or the number of a range. An empty list means missing."""

_open = declare("grace_users_open(out uint64[])")
_close = declare("grace_users_close(uint64)")
_read = declare("grace_users_read(uint64, int64[], int64, uintp[])")


@dataclass(frozen=True, slots=True)
class UserRows:
    """What the users of B requests ask of each component, in the arrays of its form.

    Bits and value ids mean something only together with the schema and values that made them.
    """

    encoder: "UserEncoder"
    asked: tuple[Any, ...]
    ignored: tuple[tuple[str, ...], ...]  # per request: names the schema does not know

    def __len__(self) -> int:
        return len(self.ignored)

    def arrays(self) -> list[AnyArray]:
        return [*chain.from_iterable(self.asked)]

    def unasked(self) -> frozenset[int]:
        """Return the components of which every request passes all rows."""
        parts = enumerate(zip(self.encoder.components, self.asked, strict=True))
        return frozenset(place for place, (each, asked) in parts if not each.narrows(asked))

    def require_encoded_for(self, snapshot: Snapshot) -> None:
        """Ids of another snapshot's values would answer for other values: never compare them."""
        same_values = self.encoder.set_values is snapshot.set_values
        asks = self.encoder.hashed or snapshot.matchers is None
        if not same_values or not asks or self.encoder.schema != snapshot.schema:
            raise InputError(
                "user rows were encoded for another snapshot: encode users with the schema and "
                "set_values of the snapshot that they are matched against"
            )


@dataclass(frozen=True, slots=True)
class ReadUsers:
    """The users of a batch; one with a fault has the row of an empty user."""

    rows: UserRows
    faults: tuple[RequestError | None, ...]


@dataclass(frozen=True)
class UserEncoder:
    """Any thread may call this. Only Bloom rows need hashes, which take long to make."""

    schema: TargetingSchema
    set_values: tuple[InternedValues, ...]
    hashed: bool = True

    @classmethod
    def of(cls, snapshot: Snapshot) -> "UserEncoder":
        return cls(snapshot.schema, snapshot.set_values, snapshot.matchers is not None)

    def read(
        self, messages: Sequence[bytes], size: int, room: Room = new_arrays, *, now: int
    ) -> ReadUsers:
        """Read the users of grace.v1.RetrieveRequest messages. Empty users fill up the batch.

        now   for requests without `at`: milliseconds since 1970
        """
        most = sum(map(len, messages)) // 2  # a value takes at least two bytes of a message
        shapes = [each.shapes(size, most) for each in self.components]
        arrays = iter(room([*chain.from_iterable(shapes)]))
        rows = [each._make(islice(arrays, len(each))) for each in shapes]
        kept: list[object] = []
        addresses = self.addresses(rows, kept)
        faults, ignored = read_batch(_read, self._handle, messages, size, now, addresses)
        parts = zip(self.components, rows, strict=True)
        asked = tuple(each.filled(asked) for each, asked in parts)
        ignored = (*ignored, *[()] * (size - len(messages)))
        return ReadUsers(UserRows(self, asked, ignored), faults)

    def encode(
        self, users: Sequence[UserAttributes | RetrieveRequest], at: Sequence[int] | None = None
    ) -> UserRows:
        """Encode users. Raise RequestError, with the field, for what cannot be tested.

        at   when each user asks, in milliseconds since 1970; None: at 0
        """
        times = [0] * len(users) if at is None else at
        requests = map(request_of_user, users, times)
        read = self.read([each.SerializeToString() for each in requests], len(users), now=0)
        for fault in filter(None, read.faults):
            raise fault
        return read.rows

    def addresses(self, asked: Sequence[Any], kept: list[object]) -> npt.NDArray[np.uintp]:
        """Return where C++ finds what is asked of each component. `kept` must live meanwhile."""
        parts = zip(self.components, asked, strict=True)
        return np.array([component.address(each, kept) for component, each in parts], np.uintp)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        return components_of(self.schema)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(component.label for component in self.components)

    @cached_property
    def _handle(self) -> int:
        made = np.zeros(1, np.uint64)
        _open(made)
        handle = int(made[0])
        weakref.finalize(self, _close, handle).atexit = False
        values = iter(self.set_values)
        for each in self.components:
            each.add_to_users(handle, next(values) if each.kind.has_values else None, self.hashed)
        return handle


def request_of_user(user: UserAttributes | RetrieveRequest, at: int = 0) -> RetrieveRequest:
    if isinstance(user, RetrieveRequest):
        return user
    request = RetrieveRequest(at=at)
    for name, values in user.items():
        if isinstance(values, str):
            raise RequestError(f"user.{name}.values", "expected a list of strings, got str")
        if isinstance(values, int | float):
            request.user[name].number = values
        else:
            request.user[name].values.extend(values)
    return request
