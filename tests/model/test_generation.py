"""Plain and fast generation behind one interface, and what a recorded one reads and returns."""

import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.index.trie import NO_NODE
from grace.kernels import load_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import map_tensors
from grace.model.engine.device_copy import Blocks, Staging
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.families import generation_for
from grace.model.engine.feature_stage import FastStage, PlainStage, at_once
from grace.model.engine.generation import EngineSettings, SearchTask
from grace.model.engine.precision import PRECISIONS, Precision
from support.fast_cases import MODELS, PROFILES, index_of, make_batch, make_model

CPU = torch.device("cpu")
OPS = load_ops(CPU)
CONFIG = GenerationConfig(4, {"full": PROFILES[1]})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODELS)
def test_fast_generation_owns_its_weights(kind: str, precision: Precision) -> None:
    """It leaves the model as it is, and later changes of the model change no answer."""
    model = make_model(kind, CPU)
    weights = map_tensors(tuple(model.state_dict().values()), torch.clone)
    fast = FastGeneration(model, OPS, EngineSettings(precision, 0))
    features = FastStage(model, PRECISIONS[precision])
    index, batch = index_of(model, 1, MatcherMode.CD, CPU), make_batch(model, 1, 4, 4, CPU)
    staging = Staging(Blocks(CPU))
    _, compute = features.read([], 4, staging)
    before, kept = at_once(compute()), map_tensors(batch.features, torch.clone)
    expected = fast.generate(batch.features, SearchTask(batch.users, index, PROFILES[0]))
    assert (expected.leaves != NO_NODE).any()
    assert not expected.corrupt.any()
    assert expected.scores.dtype == torch.float32
    assert all(map(torch.equal, model.state_dict().values(), weights))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    got = fast.generate(kept, SearchTask(batch.users, index, PROFILES[0]))
    assert torch.equal(got.scores, expected.scores)
    after = at_once(compute())
    if before.non_sequence is not None and after.non_sequence is not None:
        assert torch.equal(before.non_sequence, after.non_sequence)
    for one, other in zip(before.sequences, after.sequences, strict=True):
        assert torch.equal(one.states, other.states)


def test_a_precision_without_a_gpu_is_refused() -> None:
    model = make_model("t5", CPU)
    with pytest.raises(ConfigError, match=r"^precision: bf16 needs a GPU; on device"):
        generation_for(model, OPS, EngineSettings("bf16", 0), CONFIG, PlainStage(model))


def test_a_result_that_was_packed_for_one_copy_is_the_same() -> None:
    leaves = torch.arange(15, dtype=torch.int32).view(3, 5)
    found = Generated(leaves, leaves / 7, torch.tensor([False, True, False]))
    again = Generated.unpacked(found.packed(), 3)
    assert torch.equal(again.leaves, found.leaves)
    assert torch.equal(again.scores, found.scores)
    assert torch.equal(again.corrupt, found.corrupt)
