"""`grace bench fleet` over two tiny servers and a real Envoy: its rows and tables are complete."""

import pytest

from grace.bench.fleet import scaling
from grace.bench.fleet.envoy import envoy_program
from grace.bench.fleet.tables import fleet_tables
from support.bench_workloads import tiny

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(envoy_program() is None, reason="envoy is not installed: make setup"),
]


def test_two_servers_are_measured_directly_and_through_envoy() -> None:
    rows = list(scaling.measure(tiny("fleet", seconds=0.3)))
    assert [(row["variant"], row["measure"]) for row in rows] == [
        *(("direct", name) for name in ("alone", "load", "saturation")),
        *(("Envoy, 2 servers", name) for name in ("load", "saturation")),
        *(("Envoy, 1 server", name) for name in ("alone", "load", "saturation")),
    ]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["errors"], row["withdrawn"], row["tls"]) == (0, 0, "both ways")
        assert ("envoy_cpu_ms" in row) == (row["variant"] != "direct")
    assert [row["rps"] for row in rows if row["measure"] == "load"] == [20.0, 40.0, 20.0]
    assert [row["client_processes"] for row in rows] == [1, 1, 1, 2, 2, 1, 1, 1]
    assert "| load | Envoy, 2 servers | fp32 | **" in fleet_tables(rows)
