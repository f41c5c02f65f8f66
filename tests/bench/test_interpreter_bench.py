"""The measurement of a batch's cost to the interpreter runs; no test checks its times."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grace.bench.interpreter_bench import main


@pytest.fixture
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_interval")
def test_every_stage_has_its_times(tmp_path: Path) -> None:
    out = tmp_path / "results" / "interpreter.json"
    main(["--sids", "2111", "--repetitions", "3", "--out", str(out)])
    rows = {row.pop("stage"): row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["read", "input", "post", "metrics"]
    for row in rows.values():
        assert sorted(row) == ["alone_us", "beside_us", "cpu_us"]
        assert min(row.values()) > 0
