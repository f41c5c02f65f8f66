"""Nothing that is timed escapes its comparison: a fault of it costs the row.

Faults are put where the comparison did not look at the operation alone: into what a recorded graph
leaves, into one of several batches, into replies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.bench.gpu import attention, budget, gtm, ladder, others
from grace.bench.gpu.attention_variants import self_variant
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.found import Found, check_found
from grace.bench.gpu.full_check import check_reply, eligible_rules
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.rotation import DecoderBatch, Rotation
from grace.bench.gpu.tables import TABLES
from grace.bench.gpu.told_products import ADD, INTO, ToldProducts
from grace.bench.rungs.hf_t5 import hf_generate
from grace.bench.rungs.static_mask import KeptBeams, static_beams, static_step
from grace.configs.errors import DeviceError
from grace.index.matchers.modes import MatcherMode
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, UserTensors
from grace.model.definition.inputs import UserContext
from grace.model.engine.decode_weights import PLAIN_PRODUCTS
from grace.proto.retrieval_pb2 import Counts, RetrieveResponse
from support.decode_cases import branching_case, decode_case
from support.oracle import eligible

CPU = torch.device("cpu")


def tiny(table: str, *only: str) -> BenchOptions:
    given: dict[str, Any] = {"tiny": True, "seconds": 1e-6, "only": only, "precisions": ("fp32",)}
    sids = () if TABLES[table].sids == "none" else (2_000,)
    return BenchOptions(table, CPU, "", sids=sids, **given)


class StaleReplay:
    """A graph that does not read its inputs again: the first batch's result, whatever is asked."""

    def __init__(self, function: Callable[[], object], device: torch.device) -> None:  # noqa: ARG002
        self._function, self._first = function, cast("object", None)

    def __call__(self) -> object:
        self._first = self._first or self._function()
        return self._first


class StaleRun:
    """As `captured`, with the first call's result for all."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        device: torch.device,  # noqa: ARG002
    ) -> None:
        self._calls = calls

    def __call__(self) -> list[object]:
        return [self._calls[0]()] * len(self._calls)


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("ladder", "^{rung}, batch 1 in fp32"),
        ("full_path", "^{rung}, the full way, batch 1 in fp32"),
    ],
)
@pytest.mark.parametrize("rung", ["L1", "D0", "D3"])
def test_a_rungs_graphs_are_compared_for_every_batch(
    where: str, fault: str, rung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"grace.bench.gpu.{where}.Replay", StaleReplay)
    with pytest.raises(DeviceError, match=fault.format(rung=rung)):
        list(ladder.measure_ladder(tiny("ladder", rung)))


def test_a_rungs_replies_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = ExactMatcher.held

    def held(self: ExactMatcher, users: Any, *arguments: Any) -> Any:
        everybody = np.zeros_like(users.bitmask)  # what no attribute forbids
        return blind(self, replace(users, bitmask=everybody), *arguments)

    monkeypatch.setattr(ExactMatcher, "held", held)
    with pytest.raises(DeviceError, match="ads are not for this user: it is wrong, and was not"):
        list(ladder.measure_ladder(tiny("ladder", "D1")))


def test_the_decoder_over_each_size_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.bench.gpu.decoder_call.Replay", StaleReplay)
    with pytest.raises(DeviceError, match="the decoder over 2,000 SIDs, batch 1 in fp32"):
        list(gtm.measure_gtm(tiny("gtm", "decoder")))


@pytest.mark.parametrize("part", ["admission:union", "selection:union"])
def test_admission_and_selection_are_compared_for_every_batch(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.bench.gpu.gtm.captured", StaleRun)
    with pytest.raises(DeviceError, match=part.partition(":")[0]):
        list(gtm.measure_gtm(tiny("gtm", part)))


def test_the_budgets_searches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def activate(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
        return REFERENCE.activate(-hidden, row_scale, ffn)

    wrong = replace(REFERENCE, activate=activate)
    with monkeypatch.context() as patched:
        patched.setattr("grace.bench.gpu.budget.load_ops", lambda device: wrong)
        with pytest.raises(DeviceError, match="a search, batch 0 in fp32"):
            list(budget.measure_budget(tiny("budget")))
    monkeypatch.setattr("grace.bench.gpu.decoder_call.Replay", StaleReplay)
    with pytest.raises(DeviceError, match="the decoder, batch 1 in fp32"):
        list(budget.measure_budget(tiny("budget")))


@pytest.mark.parametrize("free", [True, False])
def test_our_generation_beside_others_is_compared(
    free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, fault = ("plain_found_freely", "ours, D0") if free else ("plain_found", "ours, D1")
    whole = getattr(others, name)

    def other(decoder: Any, context: UserContext, *arguments: Any) -> Any:
        return whole(decoder, UserContext(-context.states, context.mask), *arguments)

    monkeypatch.setattr(others, name, other)
    with pytest.raises(DeviceError, match=f"{fault}, 2 beams, batch 0"):
        list(others.measure_others(tiny("others", "ours")))


@pytest.mark.parametrize("part", ["hf", "prefix"])
def test_hugging_faces_generation_is_compared(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Tensor:
        return hf_generate(*arguments).flip(1)

    monkeypatch.setattr(others, "hf_generate", wrong)
    with pytest.raises(DeviceError, match=rf"{part}, 2 beams: 0\.0% of the SIDs"):
        list(others.measure_others(tiny("others", part)))


def test_statics_mask_is_compared_by_tokens_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_nodes(*arguments: Any) -> tuple[Tensor, Tensor]:
        masked, onward = static_step(*arguments)
        return masked, onward + 1

    def other_tokens(*arguments: Any) -> tuple[Tensor, Tensor]:
        masked, onward = static_step(*arguments)
        return masked.roll(1, dims=1), onward.roll(1, dims=1)

    for wrong, fault in ((other_nodes, "nodes"), (other_tokens, "tokens")):
        monkeypatch.setattr(others, "static_step", wrong)
        with pytest.raises(DeviceError, match=f"STATIC's mask, {fault}"):
            list(others.measure_others(tiny("others", "static")))


@pytest.mark.parametrize(
    ("field", "fault"), [("nodes", "tokens"), ("tokens", "tokens"), ("scores", "scores")]
)
def test_both_forms_of_static_are_compared_by_the_beams_they_leave(
    field: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any) -> KeptBeams:
        kept = static_beams(*arguments)
        return kept._replace(**{field: getattr(kept, field).roll(1, dims=1) * 2})

    monkeypatch.setattr(others, "static_beams", wrong)
    with pytest.raises(DeviceError, match=f"step 0, static eager, {fault}"):
        list(others.measure_others(tiny("others", "static")))


def test_a_step_that_leaves_other_beams_of_the_catalogue_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens and nodes belong together, scores are right: only the nodes are others."""

    def wrong(index: Any, step: int, *arguments: Any) -> KeptBeams:
        kept = static_beams(index, step, *arguments)
        other = kept.nodes[:, :1].expand_as(kept.nodes)
        return kept._replace(nodes=other, tokens=kept.tokens[:, :1].expand_as(kept.tokens))

    monkeypatch.setattr(others, "static_beams", wrong)
    with pytest.raises(DeviceError, match="step 0, static eager, nodes: "):
        list(others.measure_others(tiny("others", "static")))


def test_what_a_kernel_writes_into_the_cache_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = self_variant

    def nothing_written(name: str, *arguments: Any) -> Callable[[], Tensor | None]:
        return (lambda: None) if name == "write" else whole(name, *arguments)

    monkeypatch.setattr("grace.bench.gpu.attention.self_variant", nothing_written)
    with pytest.raises(DeviceError, match="self-attention, write, t=0, the cache"):
        list(attention.measure_attention(tiny("attention", "self")))


def test_every_rotated_input_of_cross_attention_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "captured", StaleRun)
    with pytest.raises(DeviceError, match="cross-attention, flash: differs"):
        list(attention.measure_attention(tiny("attention", "cross")))


def test_scores_of_the_same_sids_are_compared_however_many_others_there_are() -> None:
    none = torch.zeros(1, dtype=torch.bool)
    nodes = torch.tensor([[5, 9, 4, -1]])
    defined = Found(nodes, torch.tensor([[-1.0, -2.0, -3.0, -torch.inf]]), none)
    exchanged = Found(torch.tensor([[9, 5, 4, 7]]), torch.tensor([[-2.0, -1.0, -3.0, -9.0]]), none)
    assert check_found("a search", exchanged, defined, "fp32") == 1.0
    wrong = Found(nodes, torch.tensor([[-1.0, -2.1, -3.0, -torch.inf]]), none)
    with pytest.raises(DeviceError, match="a search in fp32, scores: differs"):
        check_found("a search", wrong, defined, "fp32")
    other = Found(torch.tensor([[5, 9, 3, -1]]), defined.scores, none)
    with pytest.raises(DeviceError, match=r"a search in fp32: 66\.7% of the SIDs"):
        check_found("a search", other, defined, "fp32")


def test_batches_take_turns_where_the_graph_reads() -> None:
    states = [torch.full((2, 3, 4), float(number)) for number in range(3)]
    mask = torch.ones((2, 3), dtype=torch.bool)
    users = [UserTensors(torch.full((2, 1), number), ()) for number in range(3)]
    pointed: list[UserTensors] = []
    batches = [DecoderBatch(UserContext(x, mask), u) for x, u in zip(states, users, strict=True)]
    rotation = Rotation(batches, torch.float16, pointed.append)
    place = rotation.context.states.data_ptr()
    seen = [float(rotation.context.states[0, 0, 0])]
    for _ in range(4):
        rotation()
        seen.append(float(rotation.context.states[0, 0, 0]))
    assert seen == [0, 1, 2, 0, 1]
    assert [int(each.bitmask[0, 0]) for each in pointed] == seen
    assert (rotation.context.states.data_ptr(), rotation.context.states.dtype) == (
        place, torch.float16,
    )  # fmt: skip
    rotation.put(1)
    rotation()
    assert float(rotation.context.states[0, 0, 0]) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_rules_of_replies_are_eligibility(seed: int) -> None:
    case = decode_case(branching_case(np.random.default_rng(seed), 111, 7))
    snapshot = case.snapshot
    rules = np.arange(snapshot.rules.num_rules)
    by_id = {ad.ad_id: ad for ad in case.case.ads}
    answers = set()
    for user in case.case.users:
        passes = eligible_rules(snapshot, rules, user)[snapshot.ads.ad_rule]
        expected = [
            eligible(case.case.schema, by_id[ad], user) for ad in snapshot.ads.ad_ids.tolist()
        ]
        assert passes.tolist() == expected
        answers.update(expected)
    assert answers == {True, False}


def replied(
    snapshot: Snapshot, user: Any, leaves: Any, scores: Any, max_ads: int
) -> RetrieveResponse:
    rows = UserEncoder(snapshot.schema, snapshot.set_values).encode([user])
    ads = ExactMatcher(snapshot, 1).match(rows, np.array([0, len(leaves)]), leaves, scores, max_ads)
    counts = Counts(
        ads_generated=int(ads.counts.generated[0]),
        ads_matched=int(ads.counts.matched[0]),
        ads_returned=len(ads.ad_ids),
    )
    return RetrieveResponse(ad_ids=ads.ad_ids, scores=ads.scores, counts=counts)


def test_every_fault_of_a_reply_is_named() -> None:
    catalogue = Catalogue(2_000)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    rng = np.random.default_rng(7)
    leaves = rng.permutation(2_000).astype(np.int32)
    leaves[1] = -1
    scores = -np.sort(rng.random(2_000)).astype(np.float32)
    scores[1] = -np.inf
    found = None
    for user in catalogue.attributes(0, 30):
        whole = replied(snapshot, user, leaves, scores, 1 << 30)
        if whole.counts.ads_matched >= 5:
            found = user
            break
    assert found is not None
    most = whole.counts.ads_matched - 2
    good = replied(snapshot, found, leaves, scores, most)

    def fault(change: Callable[[RetrieveResponse], None]) -> str:
        reply = RetrieveResponse()
        reply.CopyFrom(good)
        change(reply)
        return check_reply(snapshot, found, leaves, scores, most, reply)

    others_ads = set(snapshot.ads.ad_ids.tolist()) - set(whole.ad_ids)

    def ineligible(reply: RetrieveResponse) -> None:
        reply.ad_ids[0] = min(others_ads)

    def twice(reply: RetrieveResponse) -> None:
        reply.ad_ids[1] = reply.ad_ids[0]

    def fewer(reply: RetrieveResponse) -> None:
        del reply.ad_ids[-1], reply.scores[-1]

    def other_score(reply: RetrieveResponse) -> None:
        reply.scores[0] += 1

    def not_the_best(reply: RetrieveResponse) -> None:
        reply.ad_ids[0], reply.scores[0] = whole.ad_ids[-1], whole.scores[-1]

    assert fault(lambda reply: None) == ""
    assert "1 of " in fault(ineligible)
    assert "ads are not for this user" in fault(ineligible)
    assert fault(twice) == "an ad comes twice"
    assert "ads were generated, matched and returned" in fault(fewer)
    assert fault(other_score) == "scores are not those of the ads' SIDs"
    assert fault(not_the_best) == "other ads are better than those returned"


def test_a_product_outside_torch_is_told_with_its_shape() -> None:
    class Outside:
        """As kernels.lt_products: nothing that torch knows of."""

        def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
            out.numpy()[:] = x.numpy() @ weight.numpy().T

        def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
            residual.numpy()[:] += x.numpy() @ weight.numpy().T

    x, weight = torch.randn((5, 3)), torch.randn((4, 3))
    for products in (Outside(), PLAIN_PRODUCTS):
        told = ToldProducts(products)
        out = torch.full((5, 4), torch.nan)
        with torch.inference_mode(), torch.profiler.profile(record_shapes=True) as profiled:
            told.into(x, weight, out)
            told.add(out, x, weight)
        told.close()
        torch.testing.assert_close(out, 2 * x @ weight.t())
        entries = {e.key: e for e in profiled.key_averages(group_by_input_shape=True)}
        for key in (INTO, ADD):
            assert entries[key].input_shapes == [[5, 3], [4, 3], [5, 4]]
