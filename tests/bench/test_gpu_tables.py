"""Every table of `grace bench`, on shapes that a CPU computes: its rows are complete.

Speed does not matter here. Each fixture is one run, which several tests look at.
"""

import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from grace.bench.background import in_background
from grace.bench.fleet import scaling
from grace.bench.fleet.envoy import envoy_program
from grace.bench.gpu import attention, budget, fresh, gtm, ladder, overlap, serve
from grace.bench.gpu.pages.serve_tables import fleet_tables, serve_tables
from grace.bench.gpu.subjects.catalogue import Catalogue, catalogue_spec, full_requests
from grace.bench.gpu.subjects.workload import PAPER, workload_of
from grace.bench.markdown import ms
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row
from grace.catalogues.paper.spec import PAPER_SIDS, PaperSpec
from grace.client import AdminClient
from grace.configs.eligibility import MatcherMode
from grace.configs.serving import LimitsConfig
from grace.index.storage import versions
from grace.kernels import Ops
from grace.model.checkpoints.init import load_model_config
from grace.server.stages.requests import read_request
from support.arrays import assert_same_arrays
from support.bench_workloads import tiny
from support.in_process import invoke_grace


def test_attention_rows_have_every_kernel_and_step() -> None:
    attention_rows = list(attention.measure(tiny("attention", "cross", "self")))
    assert attention_rows[0]["measure"] == "copy"
    cross = [row["variant"] for row in attention_rows if row["measure"] == "cross"]
    assert cross == ["before", "flash", "ours"]
    places = {
        name: [(row["step"], row["beams"]) for row in attention_rows if row.get("variant") == name]
        for name in ("write", "fa2", "ours", "ours distinct")
    }
    every = [(step, 33) for step in range(4)]
    assert places["fa2"] == places["ours distinct"] == every
    assert [place for place in places["ours"] if place[0]] == [*every[1:], (1, 21)]
    assert places["write"] == [(0, 33)]
    assert all(row["p50_ms"] > 0 and row["share_of_copy"] >= 0 for row in attention_rows[1:])


def test_gtm_rows_have_every_step_and_their_sum() -> None:
    asked = ("admission:bitmask", "admission:union", "admission:exact", "selection:free")
    steps: dict[tuple[str, str], list[Row]] = {}
    for row in gtm.measure(tiny("gtm", *asked)):
        steps.setdefault((row["measure"], row["mode"]), []).append(row)
    assert len(steps) == 4
    for own in steps.values():
        assert [row["step"] for row in own] == [0, 1, 2, 3, "all"]
        total = sum(row["p50_ms"] for row in own[:-1])
        assert own[-1]["p50_ms"] == pytest.approx(total, abs=1e-3)
    admitted = [steps["admission", mode][0]["admitted"] for mode in ("union", "bitmask")]
    assert admitted == sorted(admitted)
    assert steps["selection", "free"][0]["admitted"] == 3 * 512


def test_ladder_rows_generate_the_sids_of_the_plain_loop() -> None:
    # One of each kind: spread, dense, paged, by the catalogue, by exact eligibility.
    asked = ("L0", "L3", "L4", "D1", "D4")
    rows = list(ladder.measure(tiny("ladder", *asked)))
    assert tuple(row["rung"] for row in rows) == asked
    for row in rows:
        assert row["overlap_with_fp32"] > 0.99
        assert 0 < row["decoder_p50_ms"] <= row["decoder_p99_ms"]
        assert 0 < row["full_p50_ms"] <= row["full_p99_ms"]
        assert set(row["last_full"]) == {"input_ms", "features_ms", "generate_ms", "post_ms"}
        assert (row["sm_clock_mhz"], row["power_w"]) == (None, None)


def test_a_budget_has_floors_for_products_and_operations() -> None:
    rows = list(budget.measure(tiny("budget")))
    assert rows[0]["measure"] == "rates"
    operations = {row["kernel"]: row for row in rows if row["measure"] == "operation"}
    before_the_loop = {"eligible_nodes"}
    of_causal_models = {"causal_attention", "prompt_attention", "place_heads", "log_sums"}
    others = before_the_loop | of_causal_models
    assert set(operations) == {field.name for field in fields(Ops)} - others
    products = [row for row in rows if row["measure"] == "product"]
    assert products
    assert all(row["floor_ms"] > 0 for row in (*products, *operations.values()))
    # Layers after the first attend in every step, the first where its memo ends: here step 2.
    assert operations["self_attention"]["calls"] == 4 + 2


def test_fp8_has_the_engines_rungs_and_our_kernels() -> None:
    rungs = list(ladder.measure(tiny("ladder", "L1", "D0", "D4", precisions=("fp8",))))
    assert [(row["rung"], row["precision"]) for row in rungs] == [("D0", "fp8"), ("D4", "fp8")]
    kernels = list(attention.measure(tiny("attention", "cross", "self", precisions=("fp8",))))
    assert {row["variant"] for row in kernels[1:]} == {"ours", "ours distinct"}


def test_the_papers_workload_has_its_numbers() -> None:
    """A request's 0.446 TFLOP in 15.5 ms a batch are 46.6 %; our count of its decoder is near."""
    paper = workload_of(BenchOptions("ladder", "cuda"))
    assert paper.dynamic.beams == (1, 512, 1024, 1024)
    assert ladder.mfu(paper, paper.dynamic.beams, 15.5) == pytest.approx(0.466, rel=0.03)
    (request,) = full_requests(paper.spec, [{"region": ["region-001"]}], seed=7)
    limits, generation = LimitsConfig(), load_model_config(PAPER).generation
    read_request(request.SerializeToString(), limits, generation)  # within the limits
    given = request.features
    named = {*given.dense, *given.categorical, *given.bags, *given.sequences}
    assert named == set(paper.spec.inputs)
    assert len(given.sequences["impressions"].sids) == 256 * 4
    assert all(len(bag.ids) == 20 for bag in given.bags.values())
    assert catalogue_spec(PAPER_SIDS) == PaperSpec(PAPER_SIDS, 1)
    for sids in (3_000_000, 100_000_000):  # they keep the second level
        counts = catalogue_spec(sids).level_counts
        assert (*counts[:2], counts[-1]) == (512, 512 * 384, sids)
        assert all(upper < lower for upper, lower in pairwise(counts))


def test_a_catalogue_from_the_cache_is_the_one_that_was_built(tmp_path: Path) -> None:
    work = tiny("gtm", cache=tmp_path)
    built = Catalogue(1_111)
    for mode in (MatcherMode.EXACT, MatcherMode.UNION, MatcherMode.STATIC):
        expected = built.snapshot(mode)
        for snapshot in (work.catalogue().snapshot(mode), work.catalogue().snapshot(mode)):
            assert_same_arrays(snapshot, expected)
    assert work.catalogue().attributes(3, 4) == built.attributes(0, 7)[3:]
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]
    assert [path.name for path in (tmp_path / "abc").iterdir()] == ["paper-1-1111"]


def test_the_command_writes_a_result_file_and_prints_its_rows_or_tables(tmp_path: Path) -> None:
    out, command = tmp_path / "attention.json", "bench attention --device cpu --tiny --only cross"
    asked = [*command.split(), "--seconds", "0.001", "--precision", "fp32", "--out", str(out)]
    done = invoke_grace(*asked, "--json")
    assert done.exit_code == 0, done.stderr
    times = [line.partition(" s: ")[2] for line in done.stderr.splitlines()]
    assert times == ["1 row", *(f"{number} rows" for number in range(2, 5))]
    result = json.loads(out.read_text())
    assert set(result) == {"machine", "commit", "command", "rows"}
    assert [json.loads(line) for line in done.stdout.splitlines()] == result["rows"]
    out.unlink()
    done = invoke_grace(*asked)
    assert done.exit_code == 0, done.stderr
    again = json.loads(out.read_text())["rows"]
    assert "Cross-attention, ms" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("ours")]
    assert ms(again[-1]["p50_ms"]) in line.split()


@pytest.mark.subprocess
def test_a_server_is_loaded_from_other_processes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    asked = ("alone:union", "saturation:union", "swap:exact")
    rows = list(serve.measure(tiny("serve", *asked, seconds=0.3, cache=cache)))
    assert [f"{row['measure']}:{row['mode']}" for row in rows] == list(asked)
    assert [row["connections"] for row in rows] == [1, 2, 2]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["errors"], row["withdrawn"]) == (0, 0)
    alone, full, swap = rows
    assert 0 < alone["grpc_p50_ms"] < alone["p50_ms"]
    assert (full["in_flight"], swap["rps"]) == (64, 20.0)
    assert 0 < full["generate_busy"] <= 1
    assert (swap["alone_errors"], swap["live_load_faults"]) == (0, [])
    assert swap["live_load_s"]
    kept = cache / "abc"
    assert versions(kept / "paper-1-1111") == (1, 2)
    assert len(list(kept.glob("checkpoint-*/model.safetensors"))) == 1


@pytest.mark.subprocess
def test_ads_change_while_a_server_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "CHANGES", 2)  # each takes a second
    rows = list(serve.measure(tiny("serve", "visible:exact", "fresh:exact", seconds=1.3)))
    visible, loaded = rows
    assert (visible["measure"], visible["changes"]) == ("visible", 2)
    assert visible["replies_compared"] == 2
    assert 0 < visible["visible_p50_s"] <= visible["visible_p99_s"] <= visible["visible_p100_s"]
    assert (loaded["measure"], loaded["rps"], loaded["faults"]) == ("fresh", 20.0, [])
    assert loaded["changes"] > 1
    assert loaded["replies_compared"] > 3
    assert loaded["errors"] == loaded["alone_errors"] == 0
    assert loaded["host_gb"] >= loaded["host_now_gb"] > 0
    assert "| exact | fp32 | 20 | " in serve_tables(rows)


def test_a_live_load_that_fails_is_reported() -> None:
    with (
        AdminClient("127.0.0.1:1") as client,  # nothing listens there
        in_background(lambda: client.load(timeout=9.0)) as faults,
    ):
        pass
    (fault,) = faults
    assert "127.0.0.1:1" in fault


def test_saturation_is_measured_in_the_middle_of_the_trace(tmp_path: Path) -> None:
    """Batches of 10 ms every 20 ms; at the ends there are none."""
    spans = [(number * 20_000.0, stage) for number in range(100) for stage in ("generate", "post")]
    events = [
        {"name": stage, "ph": "X", "ts": ts, "dur": 10_000.0, "args": {"requests": 16}}
        for ts, stage in spans
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    row = serve.saturation_row(trace, 2.0)
    assert row["mean_batch"] == 16.0
    assert row["generate_busy"] == pytest.approx(0.5, abs=0.01)


def test_overlap_rows_have_the_training_and_every_precision_of_both_models() -> None:
    rows = list(overlap.measure(tiny("overlap", sids=(2_000,), precisions=("bf16", "fp8"))))
    learning = next(row for row in rows if row["measure"] == "learning")
    rows.remove(learning)
    assert learning["loss_final"] < 0.6 * learning["loss_first"]
    for name in ("recall", "popularity_recall"):
        shares = list(learning[name].values())
        assert shares == sorted(shares)
    names = [(row["variant"], row["precision"]) for row in rows]
    assert names == [(v, p) for v in ("paper", "trained") for p in ("fp32", "bf16", "fp8")]
    for row in rows:
        assert row["requests"] == 6
        assert 0 < row["generated"] <= 11
        least = overlap.LEAST_IN_FP32 if row["precision"] == "fp32" else 0.8
        assert least <= row["overlap"] <= 1
        assert len(row["step_overlap"]) == len(row["logit_std"]) == 4
        assert row["step_overlap"][-1] == row["overlap"]
        assert ("recall" in row) == (row["variant"] == "trained")
    assert rows[3]["recall"] == learning["recall"]
    for row in rows[4:]:
        for k, share in row["recall"].items():
            assert abs(share - learning["recall"][k]) < 0.34  # one of six people
    assert all(1.7 < std < 2.3 for std in rows[1]["logit_std"])


@pytest.mark.subprocess
@pytest.mark.skipif(envoy_program() is None, reason="envoy is not installed: make setup")
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
