"""Random models: the scale of their logits, strict configurations, and `grace init-model`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from grace.configs.errors import ConfigError
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint
from grace.model.checkpoints.init import load_model_config, random_model
from grace.model.definition.spec import DecoderSpec, ModelSpec
from support.encoder_cases import INTERFORMER
from support.generation_cases import MODELS
from support.in_process import invoke_grace
from support.models import random_context

T5 = MODELS["t5"]

DECODERS = {
    "unscaled": DecoderSpec(layers=3, d_model=63, heads=3, d_head=21, d_ff=111),
    "scaled": DecoderSpec(layers=1, d_model=96, heads=4, d_head=24, d_ff=63, scale_scores=True),
    "gated": DecoderSpec(layers=2, d_model=48, heads=2, d_head=33, d_ff=77, ffn="gated_gelu"),
    "extra rows": DecoderSpec(
        layers=1, d_model=63, heads=3, d_head=9, d_ff=9, extra_head_rows=(99, 0, 7)
    ),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_logits_of_a_random_model_have_a_standard_deviation_near_2(decoder: DecoderSpec) -> None:
    spec = replace(INTERFORMER, vocab_sizes=(111, 63, 97), decoder=decoder)
    model = random_model(spec, seed=1)
    context = random_context(31, 9, spec.context_dim, seed=2)
    sids = torch.stack([torch.arange(31)] * 3, dim=1)
    with torch.inference_mode():
        for logits in model.decoder.sequence_logits(context, sids):
            assert 1.5 <= logits.std().item() <= 2.5


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_gains_are_one_and_every_other_weight_is_random(spec: ModelSpec) -> None:
    for name, weight in random_model(spec, seed=1).named_parameters():
        if name.endswith("norm"):
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            assert weight.std() > 0.01, name
        assert weight.requires_grad, name


@pytest.fixture
def config(tmp_path: Path) -> Path:
    values = {
        "model": T5.to_json(),
        "generation": {
            "max_batch": 3,
            "profiles": {"full": {"beams": [1, 5, 9], "num_sids": 9}},
        },
    }
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(values))))
    return tmp_path / "model.yaml"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("generation:", "generator:", "unknown key 'generator'; known: generation, model"),
        ("max_batch", "batch", "generation: unknown key 'batch'"),
        ("d_model", "width", r"model\.\w+(\.t5)?: unknown key 'width'"),
        (None, "generation: {}\n", "missing key 'model'"),
    ],
)
def test_an_unknown_key_or_missing_section_is_named_with_its_path(
    old: str | None, new: str, fault: str, config: Path
) -> None:
    config.write_text(config.read_text().replace(old, new) if old else new)
    with pytest.raises(ConfigError, match=fault) as caught:
        load_model_config(config)
    assert str(caught.value).startswith(str(config))


def test_the_command_writes_what_it_says(config: Path, tmp_path: Path) -> None:
    options = ["--seed", "7", "--dtype", "float32", "--json"]
    done = invoke_grace("init-model", "--config", config, "--out", tmp_path / "m", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed["checkpoint"] == checkpoint_id(tmp_path / "m")
    expected = random_model(T5, seed=7).state_dict()
    for name, weight in load_checkpoint(tmp_path / "m").state_dict().items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [((), "--out"), (("--dry-run", "--dtype", "int8"), "--dtype")],
)
def test_the_command_names_the_option_that_is_wrong(
    arguments: tuple[str, ...], fault: str, config: Path
) -> None:
    done = invoke_grace("init-model", "--config", config, *arguments)
    assert done.exit_code == 2
    assert fault in done.stderr
