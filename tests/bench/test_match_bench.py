"""The measurement of matching runs and names what it measured; no test checks its times."""

import json
from pathlib import Path

from grace.bench.match_bench import main


def test_the_match_benchmark_writes_rows_that_add_up(tmp_path: Path) -> None:
    out = tmp_path / "results" / "match.json"
    main(["--sids", "2111", "--rules", "999", "--repetitions", "2", "--out", str(out)])
    result = json.loads(out.read_text())
    assert sorted(result) == ["command", "commit", "machine", "rows"]
    assert "python -m grace.bench.match_bench --sids 2111" in result["command"]
    assert [row["leaves"] for row in result["rows"][::2]] == ["random", "eligible", "scattered"]
    for row in result["rows"]:
        assert 0 < row["returned"] <= row["matched"] <= row["generated"]
        assert row["returned"] <= row["max_ads"]
        assert row["median_ms"] <= row["p90_ms"]
