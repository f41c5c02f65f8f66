"""Streams of a pipeline that leave out one wait or hold, to see that a test notices."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grace.server.scheduling.streams import Streams

__all__ = ["without"]


class _Without:
    """An object with some of its methods replaced."""

    def __init__(self, whole: object, **methods: Any) -> None:
        self._whole = whole
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def _nothing(_: object) -> None:
    pass


def _zeros(marks: Sequence[object]) -> list[float]:
    return [0.0] * len(marks)


def without(streams: Streams, left_out: str) -> Streams:
    """`left_out` is "features follows", "generate follows", "post waits", "keep" or nothing."""
    match left_out:
        case "features follows":
            features: Any = _Without(streams.features, follow=_nothing)
            return replace(streams, features=features)
        case "generate follows":
            generate: Any = _Without(streams.generate, follow=_nothing)
            return replace(streams, generate=generate)
        case "post waits":
            clock: Any = _Without(streams.clock, wait_for=_nothing, times=_zeros)
            return replace(streams, clock=clock)
        case "keep":
            generate = _Without(streams.generate, keep=_nothing)
            return replace(streams, generate=generate)
    assert not left_out
    return streams
