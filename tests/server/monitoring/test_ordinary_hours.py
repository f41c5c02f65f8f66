"""In ordinary hours no alert fires, as promtool sees the rules."""

import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from support.monitoring import ALERTS, needs

Numbers: TypeAlias = "npt.NDArray[Any]"

MINUTES = 600
"""Ten hours, since some rules look back eight: every hour of them must be silent."""


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ordinary_series(rng: np.random.Generator, updates: Numbers, restart: int) -> dict[str, Numbers]:
    """Return each minute's value of a server's metrics. Its counters begin again at `restart`."""
    minute = np.arange(MINUTES)
    calls = rng.poisson(6000 + 3000 * np.sin(minute / 95))
    ok = rng.binomial(calls, 0.97)
    slow = rng.binomial(ok, np.where(rng.random(MINUTES) < 0.02, 0.08, 0.004))
    low = rng.binomial(calls, np.where(np.sin(minute / 95) > 0.7, 0.1, 0.001))  # LOW at the peak
    normal = rng.binomial(calls, np.where(rng.random(MINUTES) < 0.02, 0.02, 0.0))
    exhausted = low + normal
    begun = np.where(minute < restart, 0, restart)
    loads = (minute + rng.integers(2, 5)) // 60  # of an index that took five minutes to build
    loading = np.diff(loads, prepend=0) > 0
    counters = {
        'grace_requests_total{code="OK"}': ok,
        'grace_requests_total{code="INVALID_ARGUMENT"}': rng.binomial(calls, 0.02),
        'grace_requests_total{code="CANCELLED"}': rng.binomial(calls, 0.005),
        'grace_requests_total{code="DEADLINE_EXCEEDED"}': rng.binomial(calls, 0.0004),
        'grace_requests_total{code="RESOURCE_EXHAUSTED"}': exhausted,
        'grace_requests_total{code="UNAVAILABLE"}': np.where(minute == restart + 1, 9, 0),
        'grace_requests_total{code="INTERNAL"}': rng.binomial(calls, 1e-5),
        "grace_request_duration_seconds_count": ok,
        'grace_request_duration_seconds_bucket{le="0.25"}': ok - slow,
        'grace_shed_total{priority="NORMAL"}': normal,
        'grace_shed_total{priority="LOW"}': low,
        "grace_degraded_total": rng.binomial(ok, 0.02),
        "grace_ads_per_request_count": ok,
        'grace_ads_per_request_bucket{le="0.0"}': rng.binomial(ok, 0.03),
        'grace_snapshot_load_total{result="ok"}': loading,
        'grace_snapshot_load_total{result="failed"}': minute * 0,
        'grace_updates_total{result="applied"}': np.diff(updates, prepend=0),
        'grace_updates_total{result="repeated"}': rng.poisson(0.1, MINUTES),
        'grace_updates_total{result="refused"}': minute * 0,
        'grace_credentials_load_total{setting="listen.tls",result="failed"}': minute * 0,
    }
    lag = np.where(rng.random(MINUTES) < 0.01, 0.4, rng.exponential(0.006, MINUTES))
    late = (rng.random(MINUTES) * np.diff(updates, prepend=0)).astype(int)  # within a minute
    gauges = {
        "up": minute != restart,
        "grace_ready": ~np.isin(minute, (restart, restart + 1)),
        "process_start_time_seconds": 60.0 * begun,
        "process_resident_memory_bytes": 4e9 + 3e9 * loading + rng.integers(1 << 27, size=MINUTES),
        "grace_snapshot_version": 7 + loads,
        "grace_snapshot_age_seconds": 60.0 * ((minute + 2) % 60) + 300,
        "grace_pinned": minute * 0,
        "grace_update_seq": updates - late,
        "grace_event_loop_lag_seconds": lag,
    }
    return {name: since_restart(each, restart) for name, each in counters.items()} | gauges


def since_restart(counts: Numbers, restart: int) -> Numbers:
    return np.concatenate([counts[:restart].cumsum(), counts[restart:].cumsum()])


@needs("promtool")
@pytest.mark.subprocess
def test_no_alert_fires_in_ordinary_hours(tmp_path: Path) -> None:
    """Two servers take calls, load an index every hour and follow updates; one restarts once."""
    rng = np.random.default_rng(7)
    updates = rng.poisson(60, MINUTES).cumsum()
    series: list[dict[str, str]] = []
    series.append({"series": 'up{job="grace-envoy",instance="e"}', "values": f"1x{MINUTES}"})
    for instance, restart in (("a", MINUTES // 2 + 13), ("b", MINUTES + 1)):
        for name, values in ordinary_series(rng, updates, restart).items():
            metric, _, labels = name.partition("{")
            labels = f'job="grace",instance="{instance}",{labels or "}"}'
            numbers = " ".join(f"{value:.10g}" for value in values)
            series.append({"series": f"{metric}{{{labels}", "values": numbers})
    file = tmp_path / "ordinary.yaml"
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": "count (grace:answers:rate1h > grace:answers_slow:rate1h)",
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            },
            {
                "expr": f'count_over_time(ALERTS{{alertstate="firing"}}[{MINUTES}m])',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [],
            },
        ],
    }
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": [test]}))
    promtool("test", "rules", file)
