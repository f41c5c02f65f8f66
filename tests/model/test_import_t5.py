"""Importing Hugging Face T5 folders: layouts that it reads, and faults that it refuses by name."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from grace.configs.errors import GraceError
from grace.configs.options import T5Layout
from grace.configs.sections import load_section
from grace.model.checkpoints.checkpoint import checkpoint_id, save_checkpoint
from grace.model.checkpoints.folder import load_spec
from grace.model.checkpoints.init import random_model
from grace.model.checkpoints.t5_folder import export_t5, import_t5
from grace.model.definition.model import Model
from grace.model.definition.t5_spec import EncoderDecoderSpec
from support.encoder_cases import INTERFORMER
from support.in_process import complaint, printed, reported
from support.model_folders import CONFIG, WEIGHTS, Change, assert_equal_models, weights, written
from support.t5_folders import SHAPES, T5Shape, write_t5

SHAPE = T5Shape((7,) * 3, layers=1)
LAYOUT = T5Layout("plain-1", offsets=SHAPE.offsets, vocab_sizes=SHAPE.vocab_sizes, max_history=3)
DEMO = Path(__file__).parents[2] / "model" / "demo"
GENERATION, INDEX = "generation_config.json", "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import does not need the package: importing it fails here."""
    monkeypatch.setitem(sys.modules, "transformers", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the tokens <a_0> to <a_6>, the last one first, and three others."""
    write_t5(SHAPE, tmp_path / "hf", seed=1)
    others = {"<b_0>": 24, "<b_1>": 25, "<{c}_2>": 3}
    tokens = {f"<a_{code}>": 7 - code for code in range(7)} | others
    (tmp_path / "hf" / "tokenizer.json").unlink()
    (tmp_path / "hf" / GENERATION).write_text("{}")
    (tmp_path / "hf" / "added_tokens.json").write_text(json.dumps(tokens))
    return tmp_path / "hf"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_and_sharded_files_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = write_t5(SHAPE, tmp_path / "half", seed=1, dtype=dtype)
    ours = import_t5(tmp_path / "half", LAYOUT).model
    assert torch.equal(ours.decoder.start, theirs["shared.weight"][0].float())
    write_t5(SHAPE, tmp_path / "sharded", seed=1, dtype=dtype, shards=3)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) == 3
    assert_equal_models(import_t5(tmp_path / "sharded", LAYOUT).model, ours)


def test_tied_weights_may_all_be_written_out(folder: Path) -> None:
    expected = import_t5(folder, LAYOUT).model

    def change(tensors: dict[str, Tensor]) -> None:
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
            tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
        cross = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        tensors[cross] = torch.zeros(32, 3)

    weights(change)(folder)
    assert_equal_models(import_t5(folder, LAYOUT).model, expected)


@pytest.mark.parametrize("tied", [True, False, None])
def test_before_transformers_5_a_tied_head_is_a_scaled_head(
    tied: bool | None, tmp_path: Path
) -> None:
    write_t5(replace(SHAPE, tied=False, scaled=tied is not False), tmp_path, seed=1)
    expected = import_t5(tmp_path, LAYOUT).model
    written(CONFIG, scale_decoder_outputs=None, tie_word_embeddings=tied)(tmp_path)
    assert_equal_models(import_t5(tmp_path, LAYOUT).model, expected)


def test_the_generation_config_overrides_the_config(folder: Path) -> None:
    written(GENERATION, decoder_start_token_id=0)(folder)
    written(CONFIG, decoder_start_token_id=3)(folder)
    shared = load_file(folder / WEIGHTS)["shared.weight"]
    assert torch.equal(import_t5(folder, LAYOUT).model.decoder.start, shared[0])
    (folder / GENERATION).unlink()
    assert torch.equal(import_t5(folder, LAYOUT).model.decoder.start, shared[3])


def config(**changes: Any) -> Change:
    return written(CONFIG, **changes)


def replaced(name: str, text: str) -> Change:
    """Remove the weights, and write another file."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_text(text, encoding="latin-1")

    return change


CROSS_KEYS = "decoder.block.0.layer.1.EncDecAttention.k.weight"
TEXTS: dict[str, Any] = {"sid_tokens": ("<a_{}>",), "offsets": None, "vocab_sizes": None}
FAULTS: list[tuple[str, Change | dict[str, Any], str]] = [
    (CONFIG, config(model_type="umt5"), "model_type: 'umt5'; only 't5'"),
    (CONFIG, config(model_type="gpt2", vocab_size=None), "model_type: 'gpt2'; only 't5'"),
    (CONFIG, config(is_encoder_decoder=False), "is_encoder_decoder: expected one of True, got"),
    (CONFIG, config(feed_forward_proj="gated-silu"), "proj: expected one of relu, gated-gelu, got"),
    (CONFIG, config(dense_act_fn="silu"), "dense_act_fn: 'silu' is not supported with"),
    (CONFIG, config(is_gated_act=True), "is_gated_act: True is not supported with"),
    (CONFIG, config(decoder_start_token_id=None), "decoder_start_token_id: expected 0 to 24, got"),
    (CONFIG, config(decoder_start_token_id=25), "start_token_id: expected 0 to 24, got 25"),
    (CONFIG, config(d_kv=None), "missing key 'd_kv'"),
    (CONFIG, config(vocab_size=10**15), "vocab_size: must be at most 4194304, got"),
    (CONFIG, config(num_decoder_layers=0), "num_decoder_layers: must be at least 1, got 0"),
    (CONFIG, config(relative_attention_num_buckets=2), "num_buckets: must be at least"),
    (CONFIG, config(relative_attention_max_distance=16), "max_distance: must be above"),
    *((CONFIG, replaced(CONFIG, x), "") for x in ("", "[1]", "{", "\xff", "[" * 100_000)),
    ("", weights(lambda x: x.pop(CROSS_KEYS)), f"missing tensor '{CROSS_KEYS}' [24, 24]"),
    ("", config(tie_word_embeddings=False), "missing tensor 'lm_head.weight'"),
    (WEIGHTS, weights(lambda x: x.update(user=torch.zeros(3))), "unexpected tensor 'user'"),
    (WEIGHTS, config(d_ff=41), "wi.weight' must be [41, 24] by config.json, got [40, 24]"),
    (WEIGHTS, weights(lambda x: x["shared.weight"][2, :5].fill_(torch.nan)), "t' has 5 of 600 num"),
    ("pytorch_model.bin", replaced("pytorch_model.bin", "PK"), "save_file(torch.load("),
    *(
        (INDEX, replaced(INDEX, f'{{"weight_map": {owners}}}'), "weight_map: expected names of f")
        for owners in ("null", '{"a": 3}', '{"a": "../x"}', '{"a": "/etc"}', '{"a": "\\u0000"}')
    ),
    ("gone.safetensors", replaced(INDEX, '{"weight_map": {"a": "gone.safetensors"}}'), "missing"),
    ("", {"offsets": (1, 8, 19)}, "a SID has token 25, but the folder has 0 to 24; correct"),
    ("", {"offsets": (-1, 8, 15)}, "a SID has token -1"),
    ("", {"eos_token": 25, **TEXTS}, "--eos-token has token 25"),
    ("", {"prefix_tokens": (-1,), **TEXTS}, "--eos-token has token -1"),
    ("", {**TEXTS, "sid_tokens": ("<a_{}>", "<a_{}>")}, "7 tokens have two codes"),
    ("", {**TEXTS, "sid_tokens": ("<{c}_{}>",)}, "no token '<{c}_0>', but '<{c}_2>'"),
    ("vocab sizes", {"vocab_sizes": (7, 7, 0)}, "(7, 7, 0): each must be 1 to 65536"),
    ("--vocab-sizes", {"offsets": (1, 8)}, "3 sizes for 2 positions"),
    ("--vocab-sizes", {"vocab_sizes": None, "offsets": None}, "missing; give a size per pos"),
    ("--sid-tokens", {"sid_tokens": ("<a_{}>",) * 3}, "give either patterns or --offsets"),
]


@pytest.mark.parametrize(("file", "change", "fault"), FAULTS, ids=[row[2] for row in FAULTS])
def test_what_is_wrong_in_a_folder_or_its_layout_is_named(
    file: str, change: Change | dict[str, Any], fault: str, folder: Path
) -> None:
    changes = change if isinstance(change, dict) else {}
    if not isinstance(change, dict):
        change(folder)
    with pytest.raises(GraceError) as caught:
        import_t5(folder, replace(LAYOUT, **changes))
    assert str(caught.value).startswith(file if changes and file else str(folder / file))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_commands_turn_a_folder_into_a_checkpoint_and_back(
    shape: T5Shape, tmp_path: Path
) -> None:
    """Some numbers change: of distances that no SID has, of a scaled head, in another order."""
    theirs, model, back = write_t5(shape, tmp_path, seed=1), tmp_path / "m", tmp_path / "back"
    save_checkpoint(import_t5(tmp_path, shape.layout).model, model)
    again = reported("export-t5", model, "--out", tmp_path / "again")
    report = reported("import-t5", again["out"], "--out", back, *again["import_options"])
    assert report["checkpoint"] == checkpoint_id(back) == checkpoint_id(model)
    bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    changed = {bias, *["lm_head.weight"] * shape.scaled, *["shared.weight"] * bool(shape.texts)}
    written = load_file(tmp_path / "again" / WEIGHTS)
    assert {name for name in theirs if not written[name].equal(theirs[name])} <= changed
    assert ((written[bias] == theirs[bias]) | (written[bias] == 0)).all()
    assert "decoder.embed_tokens.weight" not in written or shape.gaps


def test_a_start_that_is_a_code_comes_back(folder: Path) -> None:
    config(decoder_start_token_id=3)(folder)
    layout = replace(LAYOUT, offsets=(0, 0), vocab_sizes=(25, 25))  # every token is a code
    save_checkpoint(model := import_t5(folder, layout).model, folder / "model")
    back = import_t5(folder / "back", export_t5(folder / "model", folder / "back")).model
    assert_equal_models(back, model)


def trained(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> Model:
    """Return a model like one of `grace train`, with positions of several sizes."""
    values = {**load_spec(DEMO / "model.yaml").to_json(), "vocab_sizes": [64, 5, 7, 64]}
    values["encoder"]["t5"] |= encoder
    values["decoder"] |= decoder
    return random_model(load_section(EncoderDecoderSpec, values), seed=1)


def test_a_trained_model_comes_back_with_scaled_queries(tmp_path: Path) -> None:
    encoder, decoder = {"d_head": 7, "token_offsets": [0, 64, 128, 192]}, {"d_head": 7}
    model = trained(encoder, decoder)
    save_checkpoint(model, tmp_path / "model")
    back = import_t5(tmp_path / "hf", export_t5(tmp_path / "model", tmp_path / "hf")).model
    state, unscaled = model.state_dict(), {"scale_scores": False}
    for name in state:
        if name.endswith(("qkv", "cross_q")):
            state[name][:28] *= 7**-0.5
    for t, size in enumerate(model.spec.vocab_sizes):
        state["decoder.embed"][t : t + 1, size:] = state["decoder.head"][t, size:] = 0
    model.spec = trained(encoder | unscaled, decoder | unscaled).spec
    assert_equal_models(back, model)


REFUSED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "model.yaml: decoder.d_model: 32, but 64 in a T5 with this encoder": ({}, {"d_model": 32}),
    "extra_head_rows: (9, 9, 9, 9), but (193, 252, 2": ({}, {"extra_head_rows": [9] * 4}),
    "'decoder.head': differs between codes": ({}, {"extra_head_rows": [193, 252, 250, 193]}),
    "tensor 'decoder.embed': differs between codes": ({"token_offsets": [1] * 4}, {}),
    "tensor 'decoder.bias': differs between codes or distances": ({"relative_buckets": 4}, {}),
    "yaml: relative_attention_max_distance: must be": ({"relative_max_distance": 16}, {}),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_t5_cannot_express_is_named(fault: str, tmp_path: Path) -> None:
    save_checkpoint(trained(*REFUSED[fault]), tmp_path / "model")
    with pytest.raises(GraceError) as caught:
        export_t5(tmp_path / "model", tmp_path / "hf")
    assert fault in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_command_names_codes_without_a_token_and_what_it_cannot_use(
    folder: Path, tmp_path: Path
) -> None:
    out, given = ("--out", tmp_path / "model"), ("--sid-space", "x", "--sid-tokens", "<a_{}>")
    said = printed("import-t5", folder, *out, *given, "--vocab-sizes", "9", "--dtype", "bfloat16")
    assert "weights as bfloat16\nSID space x, codes per position (9,)\nposition 0: 2 codes" in said
    assert "is already there" in complaint("import-t5", folder, *out, *given)
    out = ("--out", tmp_path / "m")
    assert "no Hugging Face folder" in complaint("import-t5", tmp_path / "none", *out, *given)
    save_checkpoint(random_model(INTERFORMER, seed=1), tmp_path / "interformer")
    said = complaint("export-t5", tmp_path / "interformer", *out, code=1)
    assert "model.yaml: encoder: interformer, but T5 reads SIDs of one history only; train" in said
