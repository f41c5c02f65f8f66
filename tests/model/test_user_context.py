"""The encoders: their formulas, what changes a user context, and what must not change it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.model import Model
from grace.model.definition.spec import ModelSpec, SequenceInput
from support.encoder_cases import (
    INTERFORMER,
    T5,
    context_of,
    interformer_spec,
    random_features,
    t5_spec,
)
from support.plain_inputs import (
    EventSequence,
    InputEncoder,
    Integers,
    RequestFeatures,
    encode_inputs,
)
from support.plain_interformer import plain_context

SPECS = {"interformer": INTERFORMER, "t5": T5}


@pytest.fixture(scope="module", params=SPECS)
def model(request: pytest.FixtureRequest) -> Model:
    return random_model(SPECS[request.param], seed=3)


@pytest.fixture(scope="module")
def interformer() -> Model:
    return random_model(INTERFORMER, seed=3)


def test_a_t5_history_without_tokens_has_a_context_of_zeros() -> None:
    encoder = random_model(T5, seed=3).encoder
    nothing = SequenceTensors(torch.zeros(2, 5, 21), torch.zeros(2, 5, dtype=torch.bool))
    with torch.inference_mode():
        context = encoder(FeatureTensors(None, (nothing,)))
    assert not context.mask.any()
    assert not context.states.any()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_interformer_is_its_formulas(seed: int, interformer: Model) -> None:
    rng = np.random.default_rng(seed)
    requests = [random_features(INTERFORMER, rng), RequestFeatures()]
    requests.append(replace(requests[0], sequences={"buys": requests[0].sequences["buys"]}))
    weights = {n: w.numpy().astype(np.float64) for n, w in interformer.state_dict().items()}
    context = context_of(interformer, *requests)
    encoder = InputEncoder(INTERFORMER)
    for states, request in zip(context.states, requests, strict=True):
        expected = plain_context(INTERFORMER, weights, encoder.encode(request))
        torch.testing.assert_close(states.double(), torch.from_numpy(expected), rtol=0, atol=2e-5)
    assert context.mask.all()


def without_effect(
    model: Model, request: RequestFeatures, others: Mapping[str, RequestFeatures]
) -> list[str]:
    """Return the names of `others` whose user context equals that of `request` up to rounding."""
    contexts = context_of(model, request, *others.values())
    same_mask = (contexts.mask[1:] == contexts.mask[0]).all(dim=1)
    difference = (contexts.states[1:] - contexts.states[0]).abs().amax(dim=(1, 2))
    same = same_mask & (difference < 1e-4)
    return [name for name, unchanged in zip(others, same.tolist(), strict=True) if unchanged]


def with_events(request: RequestFeatures, name: str, **fields: Any) -> RequestFeatures:
    changed = replace(request.sequences[name], **fields)
    return replace(request, sequences={**request.sequences, name: changed})


def replaced(values: Integers, place: int, value: int) -> list[int]:
    return [*values[:place], value, *values[place + 1 :]]


def test_every_non_sequence_input_changes_the_context(interformer: Model) -> None:
    request = random_features(INTERFORMER, np.random.default_rng(7))
    device, pages = request.categorical["device"][0], request.bags["pages"]
    others = {
        "hour": replace(request, dense={**request.dense, "hour": [3.5]}),
        "device": replace(request, categorical={"device": [(device + 1) % 4]}),
        "an id of pages": replace(request, bags={**request.bags, "pages": [*pages[:-1], 12]}),
        "one id more": replace(request, bags={**request.bags, "pages": [*pages, 13]}),
        "topics": replace(request, bags={**request.bags, "topics": [5]}),
    }
    rates = request.dense["rates"]
    for i in range(3):
        turned = [-x if i == j else x for j, x in enumerate(rates)]
        others[f"rate {i}"] = replace(request, dense={**request.dense, "rates": turned})
    assert without_effect(interformer, request, others) == []


@pytest.mark.parametrize("name", ["clicks", "buys"])
def test_every_part_of_every_event_changes_the_context(interformer: Model, name: str) -> None:
    request = random_features(INTERFORMER, np.random.default_rng(11))
    events = request.sequences[name]
    sequence = INTERFORMER.inputs[name]
    assert isinstance(sequence, SequenceInput)
    others = {}
    for i, token in enumerate(events.sids):
        sids = replaced(events.sids, i, (token + 1) % INTERFORMER.vocab_sizes[i % 3])
        others[f"token {i}"] = with_events(request, name, sids=sids)
    for i, time in enumerate(events.timestamps_ms[:-1]):
        times = replaced(events.timestamps_ms, i, time - 2**34)
        others[f"time {i}"] = with_events(request, name, timestamps_ms=times)
    for side, cardinality in sequence.side.items():
        for i, value in enumerate(events.side[side]):
            ids = replaced(events.side[side], i, (value + 1) % cardinality)
            others[f"{side} {i}"] = with_events(request, name, side={**events.side, side: ids})
    assert without_effect(interformer, request, others) == []


def test_missing_parts_of_a_sequence_change_the_context(interformer: Model) -> None:
    request = random_features(INTERFORMER, np.random.default_rng(13))
    clicks = request.sequences["clicks"]
    shorter = EventSequence(
        clicks.sids[3:], clicks.timestamps_ms[1:], {n: ids[1:] for n, ids in clicks.side.items()}
    )
    others = {
        "times": with_events(request, "clicks", timestamps_ms=()),
        "sides": with_events(request, "clicks", side={}),
        "an event": replace(request, sequences={**request.sequences, "clicks": shorter}),
        "all events": replace(request, sequences={"buys": request.sequences["buys"]}),
    }
    assert without_effect(interformer, request, others) == []
    at_once = with_events(request, "clicks", timestamps_ms=[5] * len(clicks.timestamps_ms))
    assert without_effect(interformer, at_once, {"times": others["times"]}) == []


def test_the_order_of_events_changes_the_context(model: Model) -> None:
    request, turned = (
        RequestFeatures(sequences={"clicks": EventSequence(sids)})
        for sids in ([0, 1, 2, 3, 4, 5, 6, 0, 7], [3, 4, 5, 0, 1, 2, 6, 0, 7])
    )
    assert without_effect(model, request, {"turned": turned}) == []


def test_every_token_of_the_history_changes_the_t5_context() -> None:
    request = random_features(T5, np.random.default_rng(19))
    sids = request.sequences["clicks"].sids
    variants = {
        f"token {i}": replaced(sids, i, (token + 1) % T5.vocab_sizes[i % 3])
        for i, token in enumerate(sids)
    } | {"an event": sids[3:]}
    others = {
        name: RequestFeatures(sequences={"clicks": EventSequence(variant)})
        for name, variant in variants.items()
    }
    assert without_effect(random_model(T5, seed=3), request, others) == []


def test_events_beyond_the_longest_sequence_change_nothing(model: Model) -> None:
    rng = np.random.default_rng(23)
    request = random_features(model.spec, rng)
    recent = rng.integers(0, 5, 27).tolist()
    times = list(range(900, 909))
    full = replace(request, sequences={"clicks": EventSequence(recent, times)})
    older = EventSequence([1, 2, 3, *recent], [7_000_000, *times])
    longer = replace(request, sequences={"clicks": older})
    expected, found = context_of(model, full), context_of(model, longer)
    assert torch.equal(found.states, expected.states)
    assert torch.equal(found.mask, expected.mask)


WIDTHS = {
    "interformer-odd": interformer_spec(),
    "interformer-even": interformer_spec(d_model=32, heads=2),
    "t5-odd": t5_spec(),
    "t5-even": t5_spec(d_model=32, heads=2, d_head=16),
}


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The number of threads decides how a product is divided into rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("spec", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("bucket", [2, 5, 11])
def test_neighbours_padding_and_row_do_not_change_a_bit(spec: ModelSpec, bucket: int) -> None:
    model = random_model(spec, seed=5)
    rng = np.random.default_rng(29)
    request = random_features(spec, rng)
    alone = context_of(model, request, batch=bucket)
    others = [random_features(spec, rng) for _ in range(bucket)]
    others[1::3] = [RequestFeatures()] * len(others[1::3])
    for parity in range(2):
        rows = [i for i in range(bucket) if i % 2 == parity]
        batch = [request if i in rows else other for i, other in enumerate(others)]
        together = context_of(model, *batch)
        for row in rows:
            assert torch.equal(together.states[row], alone.states[0]), f"row {row}"
            assert torch.equal(together.mask[row], alone.mask[0])


@pytest.mark.parametrize("spec", WIDTHS.values(), ids=WIDTHS)
def test_batch_sizes_differ_by_rounding_only(spec: ModelSpec) -> None:
    model = random_model(spec, seed=5)
    request = random_features(spec, np.random.default_rng(31))
    alone = context_of(model, request)
    for bucket in (2, 5, 16):
        padded = context_of(model, request, batch=bucket)
        torch.testing.assert_close(padded.states[0], alone.states[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(padded.mask[0], alone.mask[0])


def test_empty_requests_have_a_finite_context(model: Model) -> None:
    context = context_of(model, RequestFeatures(), batch=3)
    assert context.states.isfinite().all()
    assert torch.equal(context.states[0], context.states[2])


def test_gradients_reach_every_parameter(model: Model) -> None:
    rng = np.random.default_rng(37)
    # Enough requests that every row of a small table is looked up by some of them.
    requests = [random_features(model.spec, rng) for _ in range(5)] + [RequestFeatures()]
    trained = random_model(model.spec, seed=3)
    context = trained.user_context(encode_inputs(model.spec, requests))
    named = {n: p for n, p in trained.named_parameters() if not n.startswith("decoder.")}
    loss = context.states[context.mask].sin().sum()
    gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    without = [n for n, g in gradients.items() if not g.isfinite().all() or not g.any()]
    assert without == []
