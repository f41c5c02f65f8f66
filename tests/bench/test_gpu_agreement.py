"""Nothing is timed without its comparison: a fault in it costs the row.

The faults are where a comparison of the operation alone would not see them: in the results that a
recorded graph leaves, in one of several batches, in replies. What the engine is compared with, the
paper's rungs and other systems, finds the right SIDs.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.gpu import attention, budget, gtm, ladder, overlap
from grace.bench.gpu.instruments.changed_ads import ChangedAds, SeenReply
from grace.bench.gpu.instruments.reply_check import eligible_rules
from grace.bench.gpu.subjects.attention_kernels import self_kernel
from grace.bench.gpu.subjects.catalogue import Catalogue
from grace.bench.gpu.subjects.search import (
    DecoderBatch,
    SearchResult,
    TracedResult,
    check_result,
    unconstrained_result,
)
from grace.bench.result_file import rows_of
from grace.bench.result_tables import printed_tables
from grace.bench.rungs.dense_search import RungDecoder, require_full_contexts
from grace.catalogues.paper.changes import PaperChanges
from grace.client import RetrieveResult
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError, InputError
from grace.configs.generation import BeamProfile
from grace.index.changes.applied import applied
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.index.updates.puts import take_puts
from grace.index.users.user_rows import UserAttributes, UserEncoder, request_of_user
from grace.kernels import REFERENCE, Beams, DecodeIndex, UserTensors, load_ops
from grace.kernels.decode.select_beams import Choice
from grace.model.definition.inputs import UserContext
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse, Sids
from support.bench_workloads import CPU, stale_graphs, tiny
from support.decode_cases import branching_case, decode_case
from support.models import SMALL_DECODER, random_context, random_decoder
from support.oracle import eligible
from support.strategies import random_schema


def inverted_activation(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
    return REFERENCE.activate(-hidden, row_scale, ffn)


def worst_first(given: Choice) -> Beams:
    return REFERENCE.select_beams(replace(given, logits=-given.logits))


def every_node(users: UserTensors, index: DecodeIndex) -> Tensor:
    return torch.full_like(REFERENCE.eligible_nodes(users, index), -1)


@pytest.mark.parametrize(
    ("table", "part", "fault"),
    [
        (gtm, "decoder", "the decoder over 1,111 SIDs, batch 1 in fp32"),
        (gtm, "admission:union", "admission"),
        (gtm, "admission:exact", "admission"),
        (gtm, "selection:union", "selection"),
        (gtm, "masks:64", "eligible nodes, batch 1"),
        (gtm, "masks:forms", "eligible nodes, batch 1"),
        (attention, "cross", "cross-attention, flash: differs"),
    ],
)
def test_a_graph_is_compared_for_every_batch(table: Any, part: str, fault: str) -> None:
    work = tiny(table.__name__.rpartition(".")[2], *filter(None, [part]))
    with pytest.raises(DeviceError, match=fault):
        list(table.measure(replace(work, recorder=stale_graphs())))


@pytest.mark.parametrize("rung", ["L1", "D0", "D4"])
def test_a_rungs_graphs_are_compared_for_every_batch(rung: str) -> None:
    work = tiny("ladder", rung)
    for first, fault in ((1, ", batch 1 in fp32"), (2, ", the whole path, batch 1 in fp32")):
        with pytest.raises(DeviceError, match=f"^{rung}{fault}"):
            list(ladder.measure(replace(work, recorder=stale_graphs(first))))


@pytest.mark.parametrize(
    ("table", "part", "wrong", "fault"),
    [
        (budget, "", replace(REFERENCE, activate=inverted_activation), "a search, batch 0 in fp32"),
        (
            gtm,
            "admission:exact",
            replace(load_ops(CPU), eligible_nodes=every_node),
            "eligible nodes, batch 0: is not equal",
        ),
        (
            overlap,
            "paper",
            replace(REFERENCE, select_beams=worst_first),
            r"paper in fp32: .* of the SIDs",
        ),
    ],
)
def test_a_wrong_kernel_gets_no_row(table: Any, part: str, wrong: Any, fault: str) -> None:
    work = tiny(table.__name__.rpartition(".")[2], *filter(None, [part]))
    with pytest.raises(DeviceError, match=fault):
        list(table.measure(replace(work, load_ops=lambda device: wrong)))


def test_a_rungs_replies_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ExactMatcher.held

    def held(self: ExactMatcher, users: Any, *arguments: Any, **named: Any) -> Any:
        nothing = np.zeros_like(users.asked[0].bitmask)  # no attribute forbids anything
        everybody = users.asked[0]._replace(bitmask=nothing)
        asked = (everybody, *users.asked[1:])
        return whole(self, replace(users, asked=asked), *arguments, **named)

    monkeypatch.setattr(ExactMatcher, "held", held)
    with pytest.raises(DeviceError, match="ads are not for this user: it is wrong, and was not"):
        list(ladder.measure(tiny("ladder", "D1")))


def test_what_a_kernel_writes_into_the_cache_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_written(work: Any, name: str, *arguments: Any) -> Callable[[], Tensor | None]:
        return (lambda: None) if name == "write" else self_kernel(work, name, *arguments)

    monkeypatch.setattr(attention, "self_kernel", nothing_written)
    with pytest.raises(DeviceError, match="self-attention, write, t=0, the cache"):
        list(attention.measure(tiny("attention", "self")))


def result(nodes: list[list[int]], scores: list[list[float]] | None = None) -> SearchResult:
    tensor = torch.tensor(nodes, dtype=torch.int32)
    own = tensor.float() if scores is None else torch.tensor(scores)
    return SearchResult(tensor, own, torch.zeros(len(nodes), dtype=torch.bool))


def test_scores_of_shared_sids_are_compared_however_many_others_there_are() -> None:
    defined = result([[5, 9, 4, -1]], [[-1.0, -2.0, -3.0, -torch.inf]])
    exchanged = result([[9, 5, 4, 7]], [[-2.0, -1.0, -3.0, -9.0]])
    assert check_result("a search", exchanged, defined, "fp32") == 1.0
    dead = result([[-1, -1]])
    assert check_result("a search", result([[7, 8]]), dead, "fp32") == 1.0, "none is live"
    for wrong_score in (-2.1, torch.nan):
        wrong = result([[5, 9, 4, -1]], [[-1.0, wrong_score, -3.0, -torch.inf]])
        with pytest.raises(DeviceError, match="a search in fp32, scores: differs"):
            check_result("a search", wrong, defined, "fp32")
    other = replace(defined, nodes=torch.tensor([[5, 9, 3, -1]]))
    with pytest.raises(DeviceError, match=r"a search in fp32: 66\.7% of the SIDs"):
        check_result("a search", other, defined, "fp32")


@pytest.mark.parametrize("seed", range(2))
def test_the_plain_rules_of_replies_are_eligibility(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = branching_case(rng, 111, 7, random_schema(rng, (3, 65), 2))
    ads = [
        replace(ad, clauses=(), rules={n: r for n, r in ad.rules.items() if "_all" not in n})
        for ad in drawn.ads
    ]
    case = decode_case(replace(drawn, ads=tuple(ads)))
    snapshot = case.snapshot
    rules = np.arange(snapshot.rules.num_rules)
    by_id = {ad.ad_id: ad for ad in case.case.ads}
    answers = set()
    for user in case.case.users:
        passes = eligible_rules(snapshot, rules, user)[snapshot.ads.ad_rule]
        ids = snapshot.ads.ad_ids.tolist()
        expected = [eligible(case.case.schema, by_id[ad], user) for ad in ids]
        assert passes.tolist() == expected
        answers.update(expected)
    assert answers == {True, False}


MAX_ADS = 7_777  # more than there are


def test_a_reply_while_ads_change_is_that_of_one_update() -> None:
    catalogue = Catalogue(1_111)
    snapshots, changes = [catalogue.snapshot(MatcherMode.EXACT)], PaperChanges(catalogue.paper)
    known, users = ChangedAds(snapshots[0]), catalogue.attributes(0, 33)
    user = max(users, key=lambda each: len(reply_of_all(snapshots[0], each).ad_ids))
    for number in (1, 2):
        change = changes.change(number, 333)
        known.add(number, change)
        rows = [json.dumps(row).encode() for row in change.puts]
        (puts,) = take_puts(snapshots[-1], rows, threads=1).pieces
        snapshots.append(applied(snapshots[-1], replace(puts, removed=change.removed), threads=1))
    request = request_of_user(user)
    request.max_ads = MAX_ADS
    replies = [reply_of_all(each, user) for each in snapshots]
    for update, reply in enumerate(replies):
        for first, last in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2)):
            fault = known.fault(SeenReply(request, RetrieveResult.of(reply), first, last))
            assert (fault == "") == (first <= update <= last)
    mixed = RetrieveResponse.FromString(replies[1].SerializeToString())
    mixed.ad_ids[-1] = next(ad for ad in replies[2].ad_ids if ad not in replies[1].ad_ids)
    assert "update 1: " in known.fault(SeenReply(request, RetrieveResult.of(mixed), 0, 2))


def reply_of_all(snapshot: Snapshot, user: UserAttributes) -> RetrieveResponse:
    """Return the reply to a search that generated every SID."""
    leaves = np.arange(snapshot.trie.num_leaves, dtype=np.int32)
    sids = snapshot.trie.sids(leaves)
    scores = -(sids @ np.array([512, 64, 8, 1])).astype(np.float32)
    users = UserEncoder(snapshot.schema, snapshot.set_values).encode([user])
    found = ExactMatcher(snapshot, 1).match(
        users, np.array([0, len(leaves)]), leaves, scores, MAX_ADS
    )
    return RetrieveResponse(
        ad_ids=found.ad_ids,
        scores=found.scores,
        sids=Sids(length=4, tokens=sids.flatten(), scores=scores, sid_of_ad=found.leaf_positions),
        counts=Counts(
            ads_generated=int(found.counts.generated[0]), ads_matched=int(found.counts.matched[0])
        ),
    )


@pytest.fixture(scope="module")
def peers() -> Any:
    """The module, imported by the process that runs these tests: transformers takes seconds, and
    every worker of a test run imports every test file."""
    return import_module("grace.bench.gpu.peers")


def test_a_masked_context_and_a_decoder_that_flash_attention_does_not_take_are_refused() -> None:
    context = random_context(3, 9, 17, seed=7)
    full = UserContext(context.states, torch.ones_like(context.mask))
    require_full_contexts(full)
    full.mask[1, 2] = False
    with pytest.raises(InputError, match="full user contexts"):
        require_full_contexts(full)
    with pytest.raises(InputError, match="without a relative bias"):
        RungDecoder.of(random_decoder(SMALL_DECODER, (7, 7, 7), 17, 7), CPU, torch.float32)


def test_dead_beams_without_constraints_have_no_number() -> None:
    decoder = random_decoder(SMALL_DECODER, (7, 7, 7), 17, seed=13)
    decoder.bias.data.zero_()
    context = random_context(3, 9, 17, seed=13)
    context.mask[:] = True
    expected = unconstrained_result(decoder, context, BeamProfile((1, 11, 11), 11))
    dead = replace(expected, scores=torch.full_like(expected.scores, -torch.inf))
    places = tuple(torch.full((3, 11), NO_NODE, dtype=torch.int32) for _ in range(3))
    assert (TracedResult(dead, places).numbered(7).nodes == NO_NODE).all()


def test_a_prefix_function_allows_what_continues_a_sid_and_elsewhere_only_padding(
    peers: Any,
) -> None:
    case = branching_case(np.random.default_rng(7), 63, 1)
    trie = decode_case(case, MatcherMode.CD).snapshot.trie
    allowed, offsets = peers.hf_t5.allowed_by_trie(trie), np.cumsum([2, *trie.vocab_sizes])
    for prefix in (ad.sid[:length] for ad in case.ads for length in range(trie.sid_length)):
        tokens = torch.from_numpy(np.array([0, *(np.array(prefix) + offsets[: len(prefix)])]))
        children = trie.children(trie.walk(prefix))[0]
        assert allowed(0, tokens) == (children + offsets[len(prefix)]).tolist()
    assert allowed(0, torch.tensor([0, 0])) == [0]


def test_a_programs_rows_have_every_step_or_say_what_is_missing(peers: Any) -> None:
    rows = list(peers.measure(tiny("peers")))
    generated = {(x["variant"], x["beams"]) for x in rows_of(rows, "generate")}
    assert generated == {
        (x, n) for x in ("hf", "hf prefix", "ours, D0", "ours, D1") for n in (2, 4)
    }
    steps = [x for x in rows_of(rows, "step") if x["variant"].startswith("ours")]
    widths = ((1, 7), (7, 11), (11, 11), (11, 11)), ((1, 4), (4, 4), (4, 4), (4, 4))
    expected = [(step, *width) for own in widths for step, width in enumerate(own)]
    assert [(x["step"], x["beams"], x["kept"]) for x in steps[::2]] == expected
    missing = {x["variant"]: x["unavailable"] for x in rows if "unavailable" in x}
    assert missing["STATIC"] == "name a checkout of its repository by --static PATH"
    for name in ("RecTokens", "FlashRec"):
        assert name in missing or any(x["variant"].startswith(f"{name}, ") for x in rows)
    shapes = [x["variant"] for x in rows_of(rows, "whole")]
    assert shapes == [*["sid-gr-256"] * 4, *["sid-gr-2048"] * 4, "GR4AD"]
    assert printed_tables("peers", rows)


def test_a_folder_without_static_is_refused(peers: Any, tmp_path: Path) -> None:
    work = tiny("peers", "steps")
    options = replace(work.options, static=tmp_path)
    with pytest.raises(InputError, match="has no static_decoding/decoding_pt"):
        list(peers.measure(replace(work, options=options)))


@pytest.mark.skipif("GRACE_STATIC_PATH" not in os.environ, reason="needs STATIC's repository")
def test_static_keeps_the_defined_beams_at_every_step(peers: Any) -> None:
    work = tiny("peers", "steps")
    options = replace(work.options, static=Path(os.environ["GRACE_STATIC_PATH"]))
    rows = list(peers.measure(replace(work, options=options)))
    assert [x["step"] for x in rows if x["variant"] == "STATIC, compiled"] == [*range(4)] * 2


def other_context(
    search: Callable[..., Any], decoder: Any, batch: DecoderBatch, *arguments: Any
) -> Any:
    context = UserContext(-batch.context.states, batch.context.mask)
    return search(decoder, replace(batch, context=context), *arguments)


def flipped(search: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return search(*arguments).flip(1)


def beams_of_one_sid(given: Choice) -> Beams:
    """Scores are right, and each node is a child of its parent, but all are the same."""
    kept = REFERENCE.select_beams(given)
    parents, tokens, nodes = (
        x[:, :1].expand_as(x) for x in (kept.parents, kept.tokens, kept.nodes)
    )
    return replace(kept, parents=parents, tokens=tokens, nodes=nodes)


@pytest.mark.parametrize(
    ("part", "name", "wrong", "fault"),
    [
        ("ours", "plain_result", other_context, "ours, D1, 2 beams"),
        ("hf", "hf_generate", flipped, r"hf, 2 beams: \d+\.\d% of the SIDs"),
    ],
)
def test_both_sides_of_a_comparison_are_compared_with_their_definition(
    peers: Any, part: str, name: str, wrong: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = peers.hf_t5 if part == "hf" else peers
    monkeypatch.setattr(of, name, partial(wrong, getattr(of, name)))
    with pytest.raises(DeviceError, match=fault):
        list(peers.measure(tiny("peers", part)))


@pytest.mark.parametrize(
    ("wrong", "fault"), [(worst_first, "cd, scores"), (beams_of_one_sid, "cd, nodes: ")]
)
def test_a_steps_beams_are_compared_with_the_definition(peers: Any, wrong: Any, fault: str) -> None:
    ops = replace(REFERENCE, select_beams=wrong)
    with pytest.raises(DeviceError, match=f"step 0, ours, {fault}"):
        list(peers.measure(replace(tiny("peers", "steps"), load_ops=lambda device: ops)))
