"""Every table of `grace bench`, on shapes that a CPU computes: rows are whole, and agree.

Speed is no matter here. What a row times has agreed with its definition, or there is no row.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from grace.bench.gpu import budget, gtm, ladder, others, serve
from grace.bench.gpu.attention import measure_attention
from grace.bench.gpu.attention_inputs import distinct_table, searched_tables, self_inputs
from grace.bench.gpu.catalogue import Catalogue, catalogue_spec
from grace.bench.gpu.found import Found, overlap
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.requests import full_requests
from grace.bench.gpu.results import Row
from grace.bench.gpu.rung_runs import RUNGS
from grace.bench.gpu.subject import (
    PAPER,
    engine_of,
    random_decoder_alone,
    random_weights,
    subject_of,
)
from grace.catalogues.paper import PAPER_SIDS, PaperSpec
from grace.configs.errors import DeviceError
from grace.configs.serving import LimitsConfig
from grace.index.matchers.modes import MatcherMode
from grace.index.storage.layout import arrays_of
from grace.kernels import REFERENCE, Ops
from grace.model.checkpoints.init import load_model_config
from grace.model.checkpoints.model_cost import decoder_flops
from grace.server.stages.requests import read_request
from support.command import run_grace

CPU = torch.device("cpu")


def tiny(table: str, *only: str, **more: object) -> BenchOptions:
    given = {"tiny": True, "seconds": 1e-6, "only": only, "precisions": ("fp32",)} | more
    return BenchOptions(table, CPU, "", **given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_attention_rows_tell_bandwidth_beside_the_copys() -> None:
    rows = list(measure_attention(tiny("attention", "cross", "self")))
    assert rows[0]["measure"] == "copy"
    cross = [row["variant"] for row in rows if row["measure"] == "cross"]
    assert cross == ["before", "flash", "ours"]
    places = {
        name: [(row["step"], row["beams"]) for row in rows if row.get("variant") == name]
        for name in ("write", "fa2", "ours", "ours distinct")
    }
    every = [(step, 33) for step in range(4)]
    assert places["fa2"] == places["ours distinct"] == every
    assert [place for place in places["ours"] if place[0]] == [*every[1:], (1, 21)]
    assert places["write"] == [(0, 33)]
    assert all(row["p50_ms"] > 0 and row["share_of_copy"] >= 0 for row in rows[1:])


def test_attention_reads_shared_blocks_once_and_a_dense_cache_whole() -> None:
    rows = list(measure_attention(tiny("attention", "self")))
    last = {row["variant"]: row for row in rows if row.get("step") == 3}
    block = 2 * 16 * 4 / 1e6  # heads, size of each, float32
    assert last["fa2"]["past_blocks"] == last["ours distinct"]["past_blocks"] == 3 * 33
    assert 3 + 3 <= last["ours"]["past_blocks"] < 2 * 33 + 3
    for name in ("fa2", "ours", "ours distinct"):
        blocks = 33 + last[name]["past_blocks"]
        assert last[name]["mb"] == round((2 * 33 + 2 * blocks) * block, 1)


def test_a_wrong_kernel_gets_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(REFERENCE, cross_attention=lambda queries, *_: queries)
    monkeypatch.setattr("grace.bench.gpu.attention.load_ops", lambda device: wrong)
    with pytest.raises(DeviceError, match="cross-attention, ours: differs from its definition"):
        list(measure_attention(tiny("attention", "cross")))


def test_tables_of_a_search_share_ancestors_and_distinct_ones_do_not() -> None:
    subject = subject_of(tiny("attention"))
    model = random_decoder_alone(subject.spec, CPU)
    engine = engine_of(subject, model, REFERENCE, torch.float32)
    searched = searched_tables(subject, engine, subject.dynamic)
    assert [len(table.ids) for table in searched] == [3 * beams for beams in subject.dynamic.beams]
    for step, table in enumerate(searched):
        unique = [len(torch.unique(table.ids[:, j])) for j in range(step + 1)]
        assert (unique[0], unique[-1], sum(unique[:-1])) == (3, len(table.ids), table.past)
        own = torch.arange(len(table.ids), dtype=torch.int32)
        assert torch.equal(table.ids[:, step], own + table.ids[0, step])
        begin = 0
        for place in range(step + 1):  # ancestors are of one request
            beams = subject.dynamic.beams[place]
            requests = (table.ids[:, place] - begin) // beams
            assert torch.equal(requests, own // subject.dynamic.beams[step])
            begin += 3 * beams
    distinct = distinct_table(subject.spec, 33, 3, CPU)
    assert [len(torch.unique(distinct.ids[:, j])) for j in range(4)] == [33] * 4
    assert distinct.past == 3 * 33


def test_the_dense_cache_holds_what_the_table_points_at() -> None:
    spec = subject_of(tiny("attention")).spec
    table = replace(distinct_table(spec, 5, 2, CPU), ids=torch.tensor([[3, 1, 10], [0, 4, 11]]))
    x = self_inputs(spec, table, torch.float32)
    assert torch.equal(x.qkv, x.pool[10:12])
    assert torch.equal(x.cache.keys[1], x.pool[[1, 4], 1])
    assert torch.equal(x.cache.values[2], x.pool[[10, 11], 2])


def test_gtm_rows_have_every_step_and_their_sum() -> None:
    parts = ("admission:bitmask", "admission:union", "selection:union", "selection:free")
    rows = list(gtm.measure_gtm(tiny("gtm", *parts, sids=(2_000,))))
    told = {(row["measure"], row["mode"]) for row in rows}
    assert told == {tuple(part.split(":")) for part in parts}
    for measure, mode in told:
        own = [row for row in rows if (row["measure"], row["mode"]) == (measure, mode)]
        assert [row["step"] for row in own] == [0, 1, 2, 3, "all"]
        total = sum(row["p50_ms"] for row in own[:-1])
        assert own[-1]["p50_ms"] == pytest.approx(total, abs=1e-3)
    admitted = {
        row["mode"]: row["admitted"]
        for row in rows
        if row["measure"] == "admission" and row["step"] == 0
    }
    assert admitted["union"] <= admitted["bitmask"]
    free = [row["admitted"] for row in rows if row["mode"] == "free" and row["step"] != "all"]
    assert free[0] == 3 * 512


def test_the_decoder_is_timed_over_catalogues_of_several_sizes() -> None:
    rows = list(gtm.measure_gtm(tiny("gtm", "decoder", sids=(1_500, 2_000))))
    assert {row["measure"] for row in rows} == {"decoder"}
    assert [row["sids"] for row in rows] == [1_500, 2_000]
    for row in rows:
        assert 0 < row["admission_p50_ms"] < row["decoder_p50_ms"] <= row["decoder_p99_ms"]
        assert row["admitted"] > 3 * 11
        assert row["decoder_runs"] >= 4  # turns


def test_a_catalogue_from_the_cache_is_the_one_that_was_built(tmp_path: Path) -> None:
    options = tiny("gtm", sids=(2_000,), cache=tmp_path, commit="abc")
    kept, built = Catalogue.of(options, 5), Catalogue(2_000)
    for mode in (MatcherMode.UNION, MatcherMode.STATIC):
        once, again = kept.snapshot(mode), Catalogue.of(options, 5).snapshot(mode)
        expected = arrays_of(built.snapshot(mode))
        for snapshot in (once, again):
            assert snapshot.mode is mode
            arrays = arrays_of(snapshot)
            assert arrays.keys() == expected.keys()
            assert all(np.array_equal(arrays[name], expected[name]) for name in expected)
    assert kept.attributes(3, 4) == built.attributes(0, 7)[3:]
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]


def test_catalogues_of_other_sizes_keep_the_papers_second_level() -> None:
    assert catalogue_spec(PAPER_SIDS) == PaperSpec(PAPER_SIDS, 1)
    for sids in (3_000_000, 100_000_000):
        first, second, third, last = catalogue_spec(sids).level_counts
        assert (first, second, last) == (512, 512 * 384, sids)
        assert second < third < last


@pytest.mark.parametrize("rungs", [("L0", "L3"), ("D0", "D2"), ("L4", "D3")])
def test_ladder_rows_generate_what_the_plain_loop_does(rungs: tuple[str, ...]) -> None:
    rows = list(ladder.measure_ladder(tiny("ladder", *rungs, sids=(2_000,))))
    assert [row["rung"] for row in rows] == list(rungs)
    for row in rows:
        assert row["overlap_with_fp32"] > 0.99
        assert 0 < row["decoder_p50_ms"] <= row["decoder_p99_ms"]
        assert 0 < row["full_p50_ms"] <= row["full_p99_ms"]
        assert set(row["last_full"]) == {"input_ms", "features_ms", "generate_ms", "post_ms"}
        assert (row["sm_clock_mhz"], row["power_w"]) == (None, None)


def test_the_ladder_has_the_papers_rungs_in_their_order() -> None:
    assert RUNGS == ("L0", "L1", "L2", "L3", "L4", "D0", "D1", "D2", "D3")


def test_overlap_counts_live_sids_only() -> None:
    def found(nodes: list[list[int]]) -> Found:
        tensor = torch.tensor(nodes, dtype=torch.int32)
        return Found(tensor, tensor.float(), torch.zeros(len(nodes), dtype=torch.bool))

    expected = found([[3, 5, -1], [-1, -1, -1]])
    assert overlap(found([[5, 9, -1], [7, 8, 9]]), expected) == 0.5
    assert overlap(expected, found([[-1], [-1]])) == 1.0


def test_the_mfu_of_the_papers_decoder_is_the_papers() -> None:
    """0.446 TFLOP per request, 15.5 ms a batch: 46.6 %; our count of its decoder is near."""
    spec = load_model_config(PAPER).model
    ours = decoder_flops(spec, (1, 512, 1024, 1024)) * 16 / (15.5e-3 * ladder.PEAK_FLOPS)
    assert ours == pytest.approx(0.466, rel=0.03)


def test_a_budget_has_floors_for_products_and_operations() -> None:
    rows = list(budget.measure_budget(tiny("budget", sids=(2_000,))))
    assert rows[0]["measure"] == "rates"
    operations = {row["kernel"]: row for row in rows if row["measure"] == "operation"}
    assert set(operations) == {field.name for field in fields(Ops)}
    products = [row for row in rows if row["measure"] == "product"]
    assert products
    assert all(row["floor_ms"] > 0 for row in (*products, *operations.values()))
    # Layers after the first attend in every step, the first where its memo ends: here step 2.
    assert operations["self_attention"]["calls"] == 4 + 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_attend", "self_attention"),
        ("_whole_context", "cross_attention"),
        ("void grace::(anonymous)::admit_with_lanes(int)", "admit_children"),
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "products"),
        ("void at::native::gathers<128, 4>(int)", "at::native::gathers"),
    ],
)
def test_kernels_are_told_by_their_names(name: str, kind: str) -> None:
    assert budget.kind_of_kernel(name) == kind


def test_others_masks_admit_what_the_engine_admits() -> None:
    rows: list[Row] = list(others.measure_others(tiny("others", "static", sids=(2_000,))))
    variants = ["static eager", "static compiled", "ours, cd"]
    assert [row["variant"] for row in rows] == variants * 4


def test_others_generate_at_several_beams() -> None:
    rows = list(others.measure_others(tiny("others", "hf", "ours", sids=(2_000,))))
    assert {row["variant"] for row in rows} == {"hf", "ours, D0", "ours, D1"}
    assert {row["beams"] for row in rows} == {2, 4}


def test_a_decoder_alone_is_the_same_decoder() -> None:
    spec = subject_of(tiny("gtm")).spec
    whole, alone = random_weights(spec, CPU), random_decoder_alone(spec, CPU)
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, alone.decoder.state_dict()[name])
    assert sum(x.numel() for x in alone.parameters()) < sum(x.numel() for x in whole.parameters())


def test_full_requests_give_every_declared_input_at_its_longest() -> None:
    loaded = load_model_config(PAPER)
    (request,) = full_requests(loaded.model, [{"region": ["region-001"]}], seed=7)
    read = read_request(
        request.SerializeToString(), LimitsConfig(), loaded.generation
    ).features.read()
    named = {*read.dense, *read.categorical, *read.bags}
    assert named | set(read.sequences) == set(loaded.model.inputs)
    assert len(read.sequences["impressions"].sids) == 256 * 4
    assert all(len(ids) == 20 for ids in read.bags.values())


@pytest.mark.subprocess
def test_the_command_writes_a_result_file(tmp_path: Path) -> None:
    out = tmp_path / "attention.json"
    done = run_grace(
        *"bench attention --device cpu --tiny --seconds 0.001 --only cross --out".split(), out
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" s: ")[2] for line in done.stderr.splitlines()] == [
        "1 row",
        *(f"{number} rows" for number in range(2, 5)),
    ]
    result = json.loads(out.read_text())
    assert set(result) == {"machine", "commit", "command", "rows"}
    assert result["command"].startswith("grace bench attention --device cpu --tiny")
    assert [json.loads(line) for line in done.stdout.splitlines()] == result["rows"]


@pytest.mark.subprocess
def test_a_wrong_option_is_one_line() -> None:
    done = run_grace("bench", "gtm", "--device", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --device cpu: only --tiny shapes are for a CPU\n"


@pytest.mark.subprocess
def test_a_server_is_loaded_from_another_process(tmp_path: Path) -> None:
    out = tmp_path / "serve.json"
    command = "bench serve --device cpu --tiny --seconds 0.5 --sids 2000"
    parts = ("--only", "load", "--only", "saturation")
    cache = tmp_path / "cache"
    done = run_grace(*command.split(), *parts, "--out", out, "--cache", cache, "--commit", "abc")
    assert done.returncode == 0, done.stderr
    load, full = json.loads(out.read_text())["rows"]
    assert (load["measure"], load["rps"], load["errors"]) == ("load", 20.0, 0)
    assert (full["measure"], full["in_flight"], full["errors"]) == ("saturation", 64, 0)
    for row in (load, full):
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["client_processes"], row["connections"]) == (2, 4)
    assert 0 < full["generate_busy"] <= 1
    kept = cache / "abc"
    assert (kept / "paper-1-2000-union" / "CURRENT").exists()
    assert len(list(kept.glob("checkpoint-*/model.safetensors"))) == 1


def test_saturation_is_told_from_the_middle_of_the_trace(tmp_path: Path) -> None:
    """Batches of 10 ms every 20 ms; at the ends there are none."""
    spans = [(number * 20_000.0, stage) for number in range(100) for stage in ("generate", "post")]
    trace = tmp_path / "trace.json"
    events = [
        {"name": stage, "ph": "X", "ts": ts, "dur": 10_000.0, "args": {"requests": 16}}
        for ts, stage in spans
    ]
    trace.write_text(json.dumps({"traceEvents": events}))
    own = {"ok": 64}
    out = tmp_path / "serve.json"
    row = serve.saturation_row(tiny("serve", out=out), "bf16", trace, {"total": 2e9, "grace": own})
    assert (row["rps"], row["mean_batch"]) == (32.0, 16.0)
    assert row["generate_busy"] == pytest.approx(0.5, abs=0.01)
    picture = ET.fromstring((tmp_path / "serve_timeline.svg").read_text())
    bars = [each for each in picture.iter() if each.tag.endswith("rect")]
    assert len(bars) == 1 + 2 * 10
    assert (tmp_path / "serve_timeline.json").exists()
