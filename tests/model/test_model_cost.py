"""Operations per request: the formula against what a run computes, and the paper's numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, UserTensors
from grace.model.checkpoints.init import load_model_config, random_model
from grace.model.checkpoints.model_cost import (
    decoder_flops,
    encoder_flops,
    paper_gflops,
    summarize_model,
)
from grace.model.definition.beam_search import beam_search
from grace.model.definition.spec import (
    BagInput,
    DecoderSpec,
    DenseInput,
    EncoderSpec,
    InputSpec,
    InterFormerSpec,
    ModelSpec,
)
from support.encoder_cases import INTERFORMER, T5
from support.in_process import invoke_grace
from support.models import random_context
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

CPU = torch.device("cpu")
BATCH = 16
DECODERS = {
    "relu": DecoderSpec(layers=2, d_model=32, heads=3, d_head=16, d_ff=48),
    "gated": DecoderSpec(layers=3, d_model=16, heads=2, d_head=32, d_ff=80, ffn="gated_gelu"),
    "extra rows": DecoderSpec(
        layers=1, d_model=48, heads=1, d_head=16, d_ff=16, extra_head_rows=(7, 0, 1)
    ),
}
"""Shapes here are multiples of 16, so that the CPU computes them without padding."""


def counted_decoder_flops(spec: ModelSpec, beams: tuple[int, ...]) -> int:
    """Count with torch in a beam search; the reference's self-attention is no matrix product."""
    ads = [RawAd(ad_id=0, sid=(1,) * spec.sid_length, rules={})]
    schema = TargetingSchema((), (), hash_seed=1)
    snapshot = plain_snapshot(schema, spec.vocab_sizes, ads, MatcherMode.CD)
    users = UserTensors.of(UserEncoder(schema, ()).encode([{}] * BATCH), CPU)
    index = DecodeIndex.of(snapshot, CPU)
    context = random_context(BATCH, spec.context_tokens, spec.context_dim, seed=1)
    decoder = random_model(spec, seed=1).decoder
    with FlopCounterMode(display=False) as counter:
        beam_search(decoder, context, users, index, BeamProfile(beams, 5), REFERENCE)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("beams", [(1, 3, 7), (1, 11, 11)], ids=str)
def test_the_decoders_formula_is_what_a_run_computes(name: str, beams: tuple[int, ...]) -> None:
    decoder = DECODERS[name]
    spec = replace(aligned_interformer(), decoder=decoder)
    inner = decoder.heads * decoder.d_head
    self_attention = sum(
        2 * 2 * (step + 1) * inner * decoder.layers * rows for step, rows in enumerate(beams)
    )
    counted = counted_decoder_flops(spec, beams)
    assert counted + BATCH * self_attention == BATCH * decoder_flops(spec, beams)


def test_the_t5_encoders_count_is_its_formula() -> None:
    t5 = T5.encoder.t5
    assert t5 is not None
    tokens, inner = T5.context_tokens, t5.heads * t5.d_head
    assert tokens == 2 + 9 * 3 + 1
    weights = 4 * t5.d_model * inner + 3 * t5.d_model * t5.d_ff  # gated
    products = t5.layers * tokens * (weights + 2 * tokens * inner)
    assert encoder_flops(T5) == 2 * products


def aligned_interformer() -> ModelSpec:
    interformer = InterFormerSpec(blocks=1, d_model=32, heads=2, d_ff=48, context_tokens=16)
    inputs: dict[str, InputSpec] = {"rates": DenseInput(size=16)}
    encoder = EncoderSpec(interformer=interformer)
    return replace(INTERFORMER, vocab_sizes=(11, 3, 7), inputs=inputs, encoder=encoder)


def test_the_size_of_tables_costs_no_operations_and_no_memory() -> None:
    huge = {**INTERFORMER.inputs, "pages": BagInput(hash_rows=1 << 40)}
    assert encoder_flops(replace(INTERFORMER, inputs=huge)) == encoder_flops(INTERFORMER)


@pytest.fixture(scope="module")
def paper(repository: Path) -> Path:
    return repository / "configs" / "paper.yaml"


def test_the_papers_numbers_stand_beside_its_own_model_only(paper: Path) -> None:
    spec = load_model_config(paper).model
    assert paper_gflops(spec, (1, 256, 512, 512)) is None
    others = [
        replace(spec, decoder=replace(spec.decoder, layers=4)),
        replace(spec, vocab_sizes=(512, 512, 512, 256)),
        replace(INTERFORMER, decoder=spec.decoder),
    ]
    assert [paper_gflops(other, (1, 512, 1024, 1024)) for other in others] == [None] * 3


def test_a_summary_lists_the_profiles_of_the_configuration_and_no_other() -> None:
    profiles = {"full": BeamProfile((1, 5, 9), 63), "small": BeamProfile((1, 2, 3), 3)}
    summary = summarize_model(INTERFORMER, GenerationConfig(4, profiles))
    assert [(cost.profile, cost.beams) for cost in summary.decoder] == [
        ("full", (1, 5, 9)),
        ("small", (1, 2, 3)),
    ]
    weights = sum(weight.numel() for weight in random_model(INTERFORMER, seed=1).parameters())
    assert summary.weights == weights
    with pytest.raises(ConfigError, match=r"profiles\.full\.beams: 2 steps, but vocab_sizes has 3"):
        summarize_model(INTERFORMER, GenerationConfig(4, {"full": BeamProfile((1, 5), 5)}))


def test_the_command_prints_the_papers_numbers_beside_ours(paper: Path, repository: Path) -> None:
    done = invoke_grace("init-model", "--config", paper, "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "decoder: beams 1, 1024, 1024, 1024 520.6 (the paper: 533)" in lines
    assert "decoder, full: beams 1, 512, 1024, 1024 434.2 (the paper: 446)" in lines
    assert any(line.startswith("features and encoder ") for line in lines)
    page = (repository / "docs" / "checkpoints.md").read_text()
    assert f"--dry-run\n{done.stdout}```" in page, "docs/checkpoints.md shows the output"
    printed = json.loads(
        invoke_grace("init-model", "--config", paper, "--dry-run", "--json").stdout
    )
    assert printed["checkpoint"] is None
    assert printed["bytes"] == 2 * printed["weights"]
    assert [cost["paper_gflop"] for cost in printed["decoder"]] == [533.0, 446.0, None]
