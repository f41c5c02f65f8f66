"""Random models and their cost: the scale of logits, strict configurations, `grace init-model`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from grace.configs.options import Normalizer
from grace.configs.yaml_loader import MAX_BYTES
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE
from grace.kernels import REFERENCE
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint, write_yaml
from grace.model.checkpoints.folder import load_spec
from grace.model.checkpoints.init import random_model
from grace.model.checkpoints.model_cost import decoder_flops, encoder_flops
from grace.model.definition.causal_spec import CausalSpec
from grace.model.definition.inputs import Prompts
from grace.model.definition.t5_spec import DecoderSpec, InterFormerSpec
from support.causal_searches import spec_of
from support.encoder_cases import INTERFORMER
from support.fast_cases import MODELS
from support.in_process import invoke_grace, reported
from support.model_folders import assert_equal_models
from support.models import random_context

T5 = MODELS["t5"]

# Shapes here are multiples of 16, so that the CPU computes them without padding.
DECODERS = {
    "unscaled": DecoderSpec(layers=3, d_model=64, heads=3, d_head=16, d_ff=112),
    "scaled": DecoderSpec(layers=1, d_model=96, heads=4, d_head=32, d_ff=64, scale_scores=True),
    "gated": DecoderSpec(layers=2, d_model=48, heads=2, d_head=32, d_ff=80, ffn="gated_gelu"),
    "extra rows": DecoderSpec(
        layers=1, d_model=64, heads=3, d_head=16, d_ff=16, extra_head_rows=(99, 0, 7)
    ),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_decoders_logits_have_a_deviation_near_2_and_cost_what_the_formula_says(
    decoder: DecoderSpec,
) -> None:
    """One SID for each of 32 requests costs as much as one beam in every step."""
    context_of_16 = InterFormerSpec(blocks=1, d_model=32, heads=2, d_ff=48, context_tokens=16)
    encoder = replace(INTERFORMER.encoder, interformer=context_of_16)
    spec = replace(INTERFORMER, vocab_sizes=(111, 63, 97), decoder=decoder, encoder=encoder)
    context = random_context(32, 16, 32, seed=2)
    sids = torch.stack([torch.arange(32)] * 3, dim=1)
    model = random_model(spec, seed=1)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        for logits in model.decoder.sequence_logits(context, sids):
            assert 1.5 <= logits.std().item() <= 2.5
    # Every query meets all 3 places here, and only those before it in a beam search.
    later = 2 * 2 * (2 + 1) * decoder.heads * decoder.d_head * decoder.layers
    assert counter.get_total_flops() == 32 * (decoder_flops(spec, (1, 1, 1)) + later)


@pytest.mark.parametrize("normalizer", ["all", "level"])
@pytest.mark.parametrize("changes", [{"qk_norm": True, "tied_head": True}, {"qkv_bias": True}])
def test_a_causal_models_logits_have_a_deviation_near_2_and_cost_what_the_formula_says(
    changes: dict[str, bool], normalizer: Normalizer
) -> None:
    causal = CausalSpec(3, 64, 4, 2, d_head=16, d_ff=112, num_tokens=160, **changes)
    spec = spec_of(causal, (48, 64, 32), longest=32, normalizer=normalizer)
    decoder, generator = random_model(spec, seed=1).decoder, torch.Generator().manual_seed(2)
    prompts = Prompts(torch.arange(17) * 32, torch.randint(160, (16 * 32,), generator=generator))
    table, codes = torch.arange(48, dtype=torch.int32).view(16, 3), torch.arange(16)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        cache = decoder.begin(prompts)
        read, pools = counter.get_total_flops(), decoder.new_pools(48)
        for step in range(3):
            logits = decoder.step(step, codes.int(), pools, table, cache, REFERENCE)
            assert 1.5 <= logits.std().item() <= 2.5
    # Here tokens meet those after them too, and all pass through the whole last layer, but a beam's
    # own tokens are no matrix product.
    pair, passed = 2 * 4 * 16, 64 * (2 * 4 * 16 + 3 * 112)
    later = 2 * (32 * 31 // 2) * pair + 32 * 31 * pair + 31 * passed
    assert read == 16 * (encoder_flops(spec) + 2 * later)
    own = 2 * 3 * causal.layers * pair
    assert counter.get_total_flops() - read == 16 * (decoder_flops(spec, (1, 1, 1)) - own)


def test_the_tokens_of_all_codes_fit_in_a_model_yaml(tmp_path: Path) -> None:
    causal = CausalSpec(1, 2, 1, 1, 2, 2, num_tokens=2**31)
    spec, path = spec_of(causal, (MAX_VOCAB_SIZE,)), tmp_path / "model.yaml"
    write_yaml(path, spec.to_json())
    assert load_spec(path) == spec
    assert path.stat().st_size * MAX_SID_LENGTH <= MAX_BYTES


def test_the_command_prints_the_papers_numbers_beside_ours(repository: Path) -> None:
    command = ("init-model", "--config", repository / "configs" / "paper.yaml", "--dry-run")
    done = invoke_grace(*command)
    assert (done.exit_code, done.stderr) == (0, "")
    page = (repository / "docs" / "checkpoints.md").read_text()
    assert f"--dry-run\n{done.stdout}```" in page, "docs/checkpoints.md shows the output"
    report = reported(*command)
    assert report["checkpoint"] is None
    assert report["bytes"] == 2 * report["weights"]
    assert [cost["paper_gflop"] for cost in report["decoder"]] == [533.0, 446.0, None]


def test_the_command_writes_what_it_says(tmp_path: Path) -> None:
    config = tmp_path / "model.yaml"
    generation = {"max_batch": 3, "profiles": {"full": {"beams": [1, 5, 9], "num_sids": 9}}}
    values = {"model": T5.to_json(), "generation": generation}
    config.write_text(yaml.safe_dump(json.loads(json.dumps(values))))
    given = ("--config", config, "--seed", "7", "--dtype", "float32")
    report = reported("init-model", *given, "--out", tmp_path / "m")
    assert report["checkpoint"] == checkpoint_id(tmp_path / "m")
    assert_equal_models(load_checkpoint(tmp_path / "m"), random_model(T5, seed=7))
    for arguments, fault in (((), "--out"), (("--dry-run", "--dtype", "int8"), "--dtype")):
        done = invoke_grace("init-model", "--config", config, *arguments)
        assert done.exit_code == 2
        assert fault in done.stderr
