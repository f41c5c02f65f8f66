"""Importing Hugging Face T5 folders: layouts that it reads, and faults that it refuses by name."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grace.configs.errors import GraceError
from grace.configs.options import T5Layout
from grace.model.checkpoints.checkpoint import checkpoint_id, load_encoder_decoder
from grace.model.checkpoints.import_t5 import import_t5
from grace.model.definition.model import Model
from support.in_process import invoke_grace
from support.t5_folders import T5Shape, write_t5

SHAPE = T5Shape((7,) * 3, layers=1)
LAYOUT = T5Layout("plain-1", SHAPE.vocab_sizes, SHAPE.offsets, max_history=3)
CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

Tensors = dict[str, Tensor]
Change = Callable[[Path], object]


@pytest.fixture(autouse=True)
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import does not need the package: importing it fails here."""
    monkeypatch.setitem(sys.modules, "transformers", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_t5(SHAPE, tmp_path / "hf", seed=1)
    return tmp_path / "hf"


def edit(folder: Path, name: str = CONFIG, **changes: Any) -> None:
    """Change keys of a JSON file; None removes a key."""
    values = {**json.loads((folder / name).read_text()), **changes}
    kept = {key: value for key, value in values.items() if value is not None}
    (folder / name).write_text(json.dumps(kept))


def assert_equal(one: Model, other: Model) -> None:
    assert one.spec == other.spec
    expected = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_and_sharded_files_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = write_t5(SHAPE, tmp_path / "half", seed=1, dtype=dtype)
    ours = import_t5(tmp_path / "half", LAYOUT)
    assert torch.equal(ours.decoder.start, theirs["shared.weight"][0].float())
    write_t5(SHAPE, tmp_path / "sharded", seed=1, dtype=dtype, shards=3)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) == 3
    assert_equal(import_t5(tmp_path / "sharded", LAYOUT), ours)


def test_tied_weights_may_all_be_written_out(folder: Path) -> None:
    expected = import_t5(folder, LAYOUT)

    def change(tensors: Tensors) -> None:
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
            tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
        cross = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        tensors[cross] = torch.zeros(32, 3)

    weights(change)(folder)
    assert_equal(import_t5(folder, LAYOUT), expected)


@pytest.mark.parametrize("tied", [True, False, None])
def test_before_transformers_5_a_tied_head_is_a_scaled_head(
    tied: bool | None, tmp_path: Path
) -> None:
    write_t5(replace(SHAPE, tied=False, scaled=tied is not False), tmp_path, seed=1)
    expected = import_t5(tmp_path, LAYOUT)
    edit(tmp_path, scale_decoder_outputs=None, tie_word_embeddings=tied)
    assert_equal(import_t5(tmp_path, LAYOUT), expected)


def test_the_generation_config_overrides_the_config(folder: Path) -> None:
    edit(folder, GENERATION, decoder_start_token_id=0)
    edit(folder, decoder_start_token_id=3)
    shared = load_file(folder / WEIGHTS)["shared.weight"]
    assert torch.equal(import_t5(folder, LAYOUT).decoder.start, shared[0])
    (folder / GENERATION).unlink()
    assert torch.equal(import_t5(folder, LAYOUT).decoder.start, shared[3])


def config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        edit(folder, **changes)
        edit(folder, GENERATION, decoder_start_token_id=None)

    return change


def written(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text, encoding="latin-1")


def weights(change: Callable[[Tensors], object]) -> Change:
    def edit_weights(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return edit_weights


def replaced(name: str, text: str) -> Change:
    """Remove the weights, and write another file."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_text(text)

    return change


CROSS_KEYS = "decoder.block.0.layer.1.EncDecAttention.k.weight"
FAULTS: list[tuple[str, Change, str]] = [
    (CONFIG, config(model_type="umt5"), "model_type: 'umt5'; only 't5'"),
    (CONFIG, config(model_type="gpt2", vocab_size=None), "model_type: 'gpt2'; only 't5'"),
    (CONFIG, config(is_encoder_decoder=False), "is_encoder_decoder: must be true"),
    (CONFIG, config(feed_forward_proj="gated-silu"), "feed_forward_proj: 'gated-silu' is not su"),
    (CONFIG, config(dense_act_fn="silu"), "dense_act_fn: 'silu' is not supported with"),
    (CONFIG, config(is_gated_act=True), "is_gated_act: True is not supported with"),
    (CONFIG, config(decoder_start_token_id=None), "decoder_start_token_id: expected 0 to 24, got"),
    (CONFIG, config(decoder_start_token_id=25), "start_token_id: expected 0 to 24, got 25"),
    (CONFIG, config(d_kv=None), "missing key 'd_kv'"),
    (CONFIG, config(num_decoder_layers=0), "num_decoder_layers: must be at least 1, got 0"),
    (CONFIG, config(relative_attention_num_buckets=2), "num_buckets: must be at least"),
    (CONFIG, config(relative_attention_max_distance=16), "max_distance: must be above"),
    *((CONFIG, written(CONFIG, x), "") for x in ("", "[1]", "{", "\xff", "[" * 100_000)),
    ("", weights(lambda x: x.pop(CROSS_KEYS)), f"missing tensor '{CROSS_KEYS}' [24, 24]"),
    ("", config(tie_word_embeddings=False), "missing tensor 'lm_head.weight'"),
    (WEIGHTS, weights(lambda x: x.update(user=torch.zeros(3))), "unexpected tensor 'user'"),
    (WEIGHTS, config(d_ff=41), "wi.weight' must be [41, 24] by config.json, got [40, 24]"),
    (
        WEIGHTS,
        weights(lambda x: x["shared.weight"][2, :5].fill_(torch.nan)),
        "'shared.weight' has 5 of 600 numbers NaN",
    ),
    ("pytorch_model.bin", replaced("pytorch_model.bin", "PK"), "save_file(torch.load("),
    *(
        (INDEX, replaced(INDEX, f'{{"weight_map": {owners}}}'), "weight_map: expected names of f")
        for owners in ("null", '{"a": 3}', '{"a": "../x"}', '{"a": "/etc"}', '{"a": "\\u0000"}')
    ),
    ("gone.safetensors", replaced(INDEX, '{"weight_map": {"a": "gone.safetensors"}}'), "cannot be"),
]


@pytest.mark.parametrize(("file", "change", "fault"), FAULTS, ids=[row[2] for row in FAULTS])
def test_what_is_wrong_in_a_folder_is_named(
    file: str, change: Change, fault: str, folder: Path
) -> None:
    change(folder)
    with pytest.raises(GraceError) as caught:
        import_t5(folder, LAYOUT)
    assert str(caught.value).startswith(str(folder / file))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"token_offsets": (1, 8, 19)}, r"are 1 to 25; set it to 26, or correct token_offsets"),
        ({"token_offsets": (-1, 8, 15)}, r"its tokens are -1 to 21"),
        ({"token_offsets": (1, 8)}, "token_offsets: expected 3, got 2"),
        ({"vocab_sizes": (7, 7, 0)}, "vocab_sizes: expected sizes of 1 to 65536"),
        ({"eos_token": -3}, r"its tokens are -3 to 21"),
    ],
)
def test_tokens_outside_of_the_vocabulary_are_refused(
    changes: dict[str, Any], fault: str, folder: Path
) -> None:
    with pytest.raises(GraceError, match=fault):
        import_t5(folder, replace(LAYOUT, **changes))


def test_the_command_writes_the_checkpoint_that_it_prints(folder: Path, tmp_path: Path) -> None:
    options = ["--sid-space", "plain-1", "--vocab-sizes", "7,7,7", "--max-history", "3"]
    special = ["--prefix-tokens", "23,22", "--eos-token", "24"]
    out: list[str | Path] = ["--out", tmp_path / "model"]
    done = invoke_grace("import-t5", folder, *out, *options, *special, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["checkpoint"] == checkpoint_id(tmp_path / "model")
    layout = replace(LAYOUT, prefix_tokens=(23, 22), eos_token=24)
    assert_equal(load_encoder_decoder(tmp_path / "model"), import_t5(folder, layout))
    again = invoke_grace("import-t5", folder, *out, *options)
    assert again.exit_code == 2
    assert "is already there" in again.stderr
    nothing = invoke_grace("import-t5", tmp_path / "nothing", "--out", tmp_path / "m", *options)
    assert "no Hugging Face folder here" in nothing.stderr
    offsets = ["--token-offsets", "1,8,15", "--dtype", "bfloat16"]
    done = invoke_grace("import-t5", folder, "--out", tmp_path / "m", *options, *offsets)
    assert "SID space plain-1, tokens of position 0, 1, ... from (1, 8, 15)" in done.stdout
