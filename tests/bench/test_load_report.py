"""The page reads our results and ghz's alike."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grace.bench.load.calls import Call, LoadRun, ServerTimes
from grace.bench.load.client import OpenLoop
from grace.bench.load.report import main
from grace.bench.load.result import load_result, write_load_result
from grace.bench.load.summary import read_summary
from grace.configs.errors import InputError

PNG = b"\x89PNG\r\n"


def write_ours(folder: Path, late: float = 0.0) -> Path:
    times = ServerTimes(queue=300, input=100, features=200, generate=3000, post=400)
    calls = [Call(i / 63, i / 63 + late, i / 63 + 0.01, "OK", server=times) for i in range(63)]
    calls.append(Call(1.1, 1.1, 1.2, "ResourceExhausted", "queue_full", "<the queue> is full"))
    calls.append(Call(1.2, 1.2, 1.3, "Canceled", withdrawn=True))
    run = LoadRun("ads:50051", datetime.now(UTC), 1.3, tuple(calls), 4)
    path = folder / "ours.json"
    write_load_result(load_result(run, OpenLoop(63, 1), 4, None), path)
    return path


def write_ghz(folder: Path, **changes: Any) -> Path:
    """As `ghz --format json` writes it: nanoseconds, Go's time format, its own names."""
    ends = ["OK", "OK", "OK", "Unavailable", "Canceled"]
    result = {
        "date": "2026-01-31T13:00:03+01:00",
        "endReason": "timeout",
        "options": {
            "call": "grace.v1.AdsRetrieval.Retrieve",
            "host": "ads:50051",
            "insecure": True,
            "rps": 111,
            "load-schedule": "const",
            "load-start": 0,
            "async": True,
            "connections": 4,
            "duration": 3000000000,
            "binary": False,
            "CPUs": 2,
        },
        "count": 5,
        "total": 3012345678,
        "average": 11000000,
        "fastest": 10000000,
        "slowest": 12000000,
        "rps": 1.66,
        "errorDistribution": {"rpc error: code = Unavailable desc = x": 1},
        "statusCodeDistribution": {"OK": 3, "Unavailable": 1, "Canceled": 1},
        "latencyDistribution": [{"percentage": 50, "latency": 11000000}],
        "histogram": [{"mark": 0.01, "count": 1, "frequency": 0.333}],
        "details": [
            {
                "timestamp": f"2026-01-31T13:00:0{i}.123456789+01:00",
                "latency": (10 + i) * 1000000,
                "error": "" if status == "OK" else "rpc error",
                "status": status,
            }
            for i, status in enumerate(ends)
        ],
    } | changes
    path = folder / "ghz.json"
    path.write_text(json.dumps(result))
    return path


def test_a_result_of_ours_is_summarized(tmp_path: Path) -> None:
    summary = read_summary(write_ours(tmp_path))
    assert (summary.client, summary.offered) == ("ours", 63)
    assert (summary.count, summary.ok, summary.failed, summary.withdrawn) == (65, 63, 1, 1)
    assert summary.latency_ms[99] == pytest.approx(10)
    assert summary.reasons == {"queue_full": 1}
    assert summary.stages_ms["generate"] == 3
    assert summary.late_ms == 0
    assert summary.points[0].second == pytest.approx(0, abs=1e-4)
    assert summary.points[62].second == pytest.approx(62 / 63, abs=1e-4)


def test_a_result_of_ghz_is_summarized(tmp_path: Path) -> None:
    summary = read_summary(write_ghz(tmp_path))
    assert (summary.client, summary.offered) == ("ghz", 111)
    assert (summary.count, summary.ok, summary.failed, summary.withdrawn) == (5, 3, 1, 1)
    assert summary.latency_ms == {50: 11, 90: 12, 95: 12, 99: 12}
    assert summary.reasons == {"Unavailable": 1}
    assert summary.late_ms is None
    assert [round(point.second, 3) for point in summary.points] == [0, 0.999, 1.998, 2.997, 3.996]


def test_a_ghz_run_in_which_nothing_ended_is_summarized(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"statusCodeDistribution": {}, "details": None, "histogram": None}
    summary = read_summary(write_ghz(tmp_path, count=0, slowest=0, **nothing))
    assert (summary.count, summary.ok, summary.points) == (0, 0, ())


def test_the_page_holds_a_table_first_and_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    main([str(write_ours(tmp_path)), str(write_ghz(tmp_path)), "--out", str(out)])
    assert capsys.readouterr().out == f"{out}: 2 loads\n"
    page = out.read_text()
    assert page.index("<table>") < page.index("<img")
    assert page.count("data:image/png;base64,") == 3
    assert not re.search(r"(src|href)='(?!data:)", page)
    rows = re.findall(r"<tr>(<td>.*?)</tr>", page)
    assert rows[0].startswith("<td>63</td>")
    assert rows[1].startswith("<td>111</td>")
    assert "queue_full" in page
    assert "not valid" not in page
    assert out.with_suffix(".png").read_bytes().startswith(PNG)


def test_the_page_says_that_a_run_is_not_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    main([str(write_ours(tmp_path, late=0.5)), "--out", str(out)])
    assert capsys.readouterr().out == f"{out}: 1 load\n"
    assert "not valid: the client was the limit" in out.read_text()


def test_the_page_explains_the_columns_that_do_not_explain_themselves(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    main([str(write_ours(tmp_path)), "--out", str(out)])
    page = out.read_text()
    headings = re.findall(r"<th>([^<]*)</th>", page)
    told = re.findall(r"<li><b>([^<]*)</b>: [^<]+</li>", page)
    explained = {name for names in told for name in names.split(", ")}
    assert explained <= set(headings)
    assert {"withdrawn", "late ms", "queue", "overhead"} <= explained


def test_a_page_whose_folder_is_missing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "nowhere" / "report.html"
    with pytest.raises(SystemExit):
        main([str(write_ours(tmp_path)), "--out", str(out)])
    assert f"--out: {out}: its folder does not exist; make it first" in capsys.readouterr().err
    assert not out.parent.exists()


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}')
    with pytest.raises(InputError, match=r"other\.json: not in ghz's JSON schema"):
        read_summary(other)
    with pytest.raises(InputError, match=r"absent\.json: no result of a load"):
        read_summary(tmp_path / "absent.json")
