"""The trace that a timeline writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from grace.server.observe.timeline import Timeline
from support.pipeline_cases import request_batch, request_of, spans_of


def written(timeline: Timeline, path: Path) -> dict[str, Any]:
    timeline.write(path)
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return trace


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_every_span_is_a_slice_on_the_track_of_its_stage(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(request_batch(*[request_of()] * 3), spans_of(0.25, 0.5, 0.125, begin=1000.0))
    timeline.add(
        request_batch(request_of(), bucket=1, profile="reduced"),
        spans_of(0.25, 0.5, 0.125, begin=1007.0),
    )
    trace = written(timeline, tmp_path / "trace.json")
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert [tracks[each["tid"]] for each in slices(trace)] == [
        each["name"] for each in slices(trace)
    ]
    assert list(tracks.values()) == ["input", "features", "generate", "post"]
    first, later = (each for each in slices(trace) if each["name"] == "generate")
    assert (first["ts"], first["dur"]) == (pytest.approx(2.25e6), pytest.approx(0.5e6))
    assert later["ts"] - first["ts"] == pytest.approx(7e6)
    assert first["args"] == {"batch": 0, "requests": 3, "bucket": 4, "profile": "full"}
    assert later["args"] == {"batch": 1, "requests": 1, "bucket": 1, "profile": "reduced"}


def test_only_the_latest_batches_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    timeline = Timeline(max_batches=3)
    for batch in range(11):
        timeline.add(request_batch(request_of()), spans_of(0.0, 1.0, 0.0, begin=float(batch)))
    trace = written(timeline, tmp_path / "trace.json")
    assert {each["args"]["batch"] for each in slices(trace)} == {8, 9, 10}
    assert trace["otherData"] == {"batches": 11, "left_out": 8}
