"""The encoders: their formulas, what changes a user context, and what must not change it."""

import numpy as np
import pytest
import torch

from grace.model.checkpoints.init import random_model
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.model import Model
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.proto.retrieval_pb2 import Features
from support.encoder_cases import (
    INTERFORMER,
    T5,
    context_of,
    interformer_spec,
    random_features,
    t5_spec,
)
from support.plain_inputs import encode_inputs

SPECS = {"interformer": INTERFORMER, "t5": T5}


@pytest.fixture(scope="module", params=SPECS)
def model(request: pytest.FixtureRequest) -> Model:
    return random_model(SPECS[request.param], seed=3)


def test_a_t5_history_without_tokens_has_a_context_of_zeros() -> None:
    encoder = random_model(T5, seed=3).encoder
    nothing = SequenceTensors(torch.zeros(2, 5, 21), torch.zeros(2, 5, dtype=torch.bool))
    with torch.inference_mode():
        context = encoder(FeatureTensors(None, (nothing,)))
    assert not context.mask.any()
    assert not context.states.any()


WIDTHS = {
    "interformer-odd": interformer_spec(),
    "interformer-even": interformer_spec(d_model=32, heads=2),
    "t5-odd": t5_spec(),
    "t5-even": t5_spec(d_model=32, heads=2, d_head=16),
}


@pytest.mark.parametrize("spec", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize(("threads", "bucket"), [(1, 2), (1, 11), (2, 5)])
def test_neighbours_padding_and_row_do_not_change_a_bit(
    spec: EncoderDecoderSpec, threads: int, bucket: int
) -> None:
    """The number of threads decides how a product's rows are divided."""
    torch.set_num_threads(threads)
    model = random_model(spec, seed=5)
    rng = np.random.default_rng(29)
    request = random_features(spec, rng)
    alone = context_of(model, request, batch=bucket)
    others = [random_features(spec, rng) for _ in range(bucket)]
    others[1::3] = [Features()] * len(others[1::3])
    for parity in range(2):
        rows = [i for i in range(bucket) if i % 2 == parity]
        batch = [request if i in rows else other for i, other in enumerate(others)]
        together = context_of(model, *batch)
        for row in rows:
            assert torch.equal(together.states[row], alone.states[0]), f"row {row}"
            assert torch.equal(together.mask[row], alone.mask[0])


def test_gradients_reach_every_parameter(model: Model) -> None:
    rng = np.random.default_rng(37)
    # Enough requests that every row of a small table is looked up by some of them.
    requests = [random_features(model.spec, rng) for _ in range(5)] + [Features()]
    trained = random_model(model.spec, seed=3)
    context = trained.user_context(encode_inputs(model.spec, requests))
    named = {n: p for n, p in trained.named_parameters() if not n.startswith("decoder.")}
    loss = context.states[context.mask].sin().sum()
    gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    without = [n for n, g in gradients.items() if not g.isfinite().all() or not g.any()]
    assert without == []
