"""Streams and clock of a GPU, over events whose time a test moves."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
import torch

from grace.server.scheduling import lanes
from grace.server.scheduling.lanes import (
    REFERENCE_SECONDS,
    DeviceClock,
    HostLane,
    StreamLane,
    lanes_of,
)
from support.pipeline_cases import Clock

GPU = torch.device("cuda:0")


@dataclass
class Events:
    """In place of torch.cuda. A stream has come as far as the test says."""

    clock: Clock
    synchronized: list[object] = field(default_factory=list)

    def make_stream(self, device: torch.device) -> "Stream":
        assert device == GPU
        return Stream(self)

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
    monkeypatch.setattr(lanes, "perf_counter", clock)
    return made


@pytest.mark.usefixtures("events")
def test_a_mark_s_time_is_the_host_s(clock: Clock) -> None:
    device_clock, lane = DeviceClock(GPU), StreamLane(GPU)
    marks, expected = [], []
    for seconds in (0.0, 0.001, 0.0637, 0.3):
        clock.now += seconds
        marks.append(lane.mark())
        expected.append(clock.now)
    assert device_clock.times(marks) == pytest.approx(expected, abs=1e-5)


def test_the_clock_is_set_again_before_its_distances_grow_coarse(
    events: Events, clock: Clock
) -> None:
    device_clock, lane = DeviceClock(GPU), StreamLane(GPU)
    first = len(events.synchronized)
    assert first > 0
    clock.now += 0.9 * REFERENCE_SECONDS
    device_clock.times([lane.mark()])
    assert len(events.synchronized) == first
    clock.now += 0.2 * REFERENCE_SECONDS
    mark = lane.mark()
    expected = clock.now
    assert device_clock.times([mark]) == pytest.approx([expected], abs=1e-5)
    assert len(events.synchronized) == 2 * first


def test_who_waits_for_a_mark_sleeps(events: Events) -> None:
    device_clock, lane = DeviceClock(GPU), StreamLane(GPU)
    mark: Any = lane.mark()
    device_clock.wait_for(mark)
    assert mark.blocking
    assert events.synchronized[-1] is mark


@pytest.mark.usefixtures("events")
def test_a_stream_goes_after_what_was_queued_before_it_and_after_a_mark() -> None:
    lane, other = StreamLane(GPU), StreamLane(GPU)
    mark: Any = other.mark()
    lane.go_after(mark)
    stream: Any = lane._stream
    assert stream.waits_for == ["current", mark]
    assert not lane.passed(mark)
    mark.passed = True
    assert lane.passed(mark)


@pytest.mark.usefixtures("events")
def test_memory_is_kept_until_its_stream_has_come_so_far() -> None:
    lane = StreamLane(GPU)
    memory = torch.zeros(3)
    gone = ref(memory)
    lane.keep(memory)
    del memory
    kept: Any = lane._kept[0][0]
    lane.mark()
    assert gone() is not None
    kept.passed = True
    lane.mark()
    assert gone() is None


@pytest.mark.usefixtures("events")
def test_post_s_work_is_the_host_s_on_every_device() -> None:
    made = lanes_of(GPU)
    assert isinstance(made.post, HostLane)
    streams = {id(lane._stream) for lane in (made.input, made.features, made.generate)}  # type: ignore[attr-defined]
    assert len(streams) == 3
