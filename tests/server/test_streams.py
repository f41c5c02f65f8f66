"""The streams and the clock of a GPU, over fake events whose time a test moves."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
import torch

from grace.server.scheduling.streams import (
    REFERENCE_SECONDS,
    DeviceClock,
    DeviceStream,
    HostStream,
    streams_for,
)
from support.pipeline_cases import Clock

GPU = torch.device("cuda:0")


@dataclass
class Events:
    """A fake of torch.cuda's streams and events. A stream has come as far as the test says."""

    clock: Clock
    streams: "list[Stream]" = field(default_factory=list)
    recorded: "list[Event]" = field(default_factory=list)
    synchronized: list[object] = field(default_factory=list)

    def make_stream(self, device: torch.device) -> "Stream":
        assert device == GPU
        self.streams.append(Stream(self))
        return self.streams[-1]

    def make_event(self, enable_timing: bool, blocking: bool = False) -> "Event":
        assert enable_timing
        return Event(self, blocking)


@dataclass(eq=False)
class Stream:
    events: Events
    waits_for: list[object] = field(default_factory=list)

    def wait_stream(self, other: object) -> None:
        self.waits_for.append(other)

    def wait_event(self, event: "Event") -> None:
        self.waits_for.append(event)


@dataclass(eq=False)
class Event:
    events: Events
    blocking: bool
    at: float = 0.0
    passed: bool = False

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.at = self.events.clock.now
        self.events.recorded.append(self)

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.events.synchronized.append(self)
        self.events.clock.now += 4e-6

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds, as torch has them."""
        return (later.at - self.at) * 1e3


@pytest.fixture
def events(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events(clock)
    monkeypatch.setattr(torch.cuda, "Stream", made.make_stream)
    monkeypatch.setattr(torch.cuda, "Event", made.make_event)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    return made


@pytest.mark.usefixtures("events")
def test_a_mark_s_time_is_the_host_s(clock: Clock) -> None:
    device_clock, stream = DeviceClock(GPU, clock), DeviceStream(GPU)
    marks, expected = [], []
    for seconds in (0.0, 0.001, 0.0637, 0.3):
        clock.now += seconds
        marks.append(stream.mark())
        expected.append(clock.now)
    assert device_clock.times(marks) == pytest.approx(expected, abs=1e-5)


def test_the_clock_is_set_again_before_its_distances_grow_coarse(
    events: Events, clock: Clock
) -> None:
    device_clock, stream = DeviceClock(GPU, clock), DeviceStream(GPU)
    first = len(events.synchronized)
    assert first > 0
    clock.now += 0.9 * REFERENCE_SECONDS
    device_clock.times([stream.mark()])
    assert len(events.synchronized) == first
    clock.now += 0.2 * REFERENCE_SECONDS
    mark = stream.mark()
    expected = clock.now
    assert device_clock.times([mark]) == pytest.approx([expected], abs=1e-5)
    assert len(events.synchronized) == 2 * first


def test_a_thread_that_waits_for_a_mark_sleeps(events: Events, clock: Clock) -> None:
    device_clock, stream = DeviceClock(GPU, clock), DeviceStream(GPU)
    mark: Any = stream.mark()
    device_clock.wait_for(mark)
    assert mark.blocking
    assert events.synchronized[-1] is mark


def test_a_stream_follows_earlier_work_and_another_streams_mark(events: Events) -> None:
    stream, other = DeviceStream(GPU), DeviceStream(GPU)
    mark: Any = other.mark()
    stream.follow(mark)
    assert events.streams[0].waits_for == ["current", mark]
    assert not stream.passed(mark)
    mark.passed = True
    assert stream.passed(mark)


def test_memory_is_kept_until_its_stream_has_done_the_work(events: Events) -> None:
    stream = DeviceStream(GPU)
    memory = torch.zeros(3)
    gone = ref(memory)
    stream.keep(memory)
    del memory
    kept = events.recorded[-1]
    stream.mark()
    assert gone() is not None
    kept.passed = True
    stream.mark()
    assert gone() is None


def test_post_works_on_the_host_and_each_other_stage_on_its_own_stream(events: Events) -> None:
    streams = streams_for(GPU)
    assert isinstance(streams.post, HostStream)
    assert len({id(each) for each in (streams.input, streams.features, streams.generate)}) == 3
    assert len(events.streams) == 4  # and the clock's
