"""Importing causal models: layouts of published projects, and faults that are refused by name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from grace.configs.errors import GraceError
from grace.configs.options import CausalLayout
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint
from grace.model.checkpoints.import_causal import import_causal
from support.causal_folders import (
    OF_FAMILY,
    REPOSITORIES,
    TIED,
    CausalShape,
    assert_equal_function,
    texts,
    write_causal,
)
from support.in_process import complaint, invoke_grace, printed, reported
from support.model_folders import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    Change,
    assert_equal_models,
    weights,
    written,
)

ADDED = [*texts(range(7), "<a_{}>"), *texts(range(1, 6), "<b_{}>")]
LAYOUT = CausalLayout("plain-1", ("<a_{}>", "<b_{}>"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of each family."""
    folder = tmp_path_factory.mktemp("hf")
    for family in OF_FAMILY:
        write_causal(CausalShape(family, ADDED), folder / family)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "llama", tmp_path / "llama"))


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_folders_laid_out_like_those_of_projects_are_imported(
    repository: str, tmp_path: Path
) -> None:
    shape, layout, sid = REPOSITORIES[repository]
    folder, prompt = tmp_path / "hf", tmp_path / "prompt.yaml"
    theirs = write_causal(shape, folder, dtype=torch.bfloat16, shards=True)
    assert len(list(folder.glob("*.safetensors"))) > 2
    if shape.family == "llama":  # older files have buffers, and no tokenizer.json
        index = folder / "model.safetensors.index.json"
        old = "model.layers.0.self_attn.rotary_emb.inv_freq"
        save_file({old: torch.ones(3)}, folder / "old.safetensors")
        owners = json.loads(index.read_text())["weight_map"] | {old: "old.safetensors"}
        index.write_text(json.dumps({"weight_map": owners}))
        (folder / TOKENIZER).unlink()
        added = {text: shape.token(text) for text in shape.added}
        (folder / "added_tokens.json").write_text(json.dumps(added))
    prompt.write_text("{prefix: [3, 5], event: {before: [9]}, history: seen}")
    config(bos_token_id=[3, 5])(folder)  # without a meaning, since there is a prompt
    model = import_causal(folder, replace(layout, prompt=prompt, max_history=3)).model
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    codes = zip(model.spec.tokens_of_codes, sid.values(), strict=True)
    assert [tokens[code] for tokens, code in codes] == list(map(shape.token, sid))
    assert (model.spec.prompt.history, model.spec.most_events) == ("seen", 3)
    assert_equal_function(model, theirs)


def test_the_command_writes_a_checkpoint_and_names_codes_without_a_token(
    folder: Path, tmp_path: Path, training_folder: Path
) -> None:
    out, options = tmp_path / "model", ("--sid-space", "plain-1", "--history", "seen")
    patterns = ("--sid-tokens", "<a_{}>", "--sid-tokens", "<b_{}>")
    report = reported("import-causal", folder, "--out", out, *options, *patterns)
    assert report["checkpoint"] == checkpoint_id(out)
    expected = import_causal(folder, replace(LAYOUT, history="seen")).model
    assert expected.spec.tokens_of_codes == (tuple(range(23, 30)), tuple(range(30, 35)))
    assert_equal_models(load_checkpoint(out), expected)
    gaps = (*options, *patterns, "--vocab-sizes", "9,6")
    assert "position 0: 2 codes have no token" in printed(
        "import-causal", folder, "--out", tmp_path / "gaps", *gaps
    )
    assert "is already there" in complaint("import-causal", folder, "--out", out, *gaps)
    fault = complaint("evaluate", "--data", training_folder, "--checkpoint", out, code=1)
    assert fault.startswith(f"{out / 'model.yaml'}: is a causal model; give one of the T5 family")
    (tmp_path / "recipe.yaml").write_text("model: {decoder: {causal: {layers: 1}}}")
    given = ("--config", tmp_path / "recipe.yaml", "--out", tmp_path / "trained")
    done = invoke_grace("train", "--data", training_folder, *given)
    assert "recipe.yaml: model: is a causal model; train it" in done.stderr.splitlines()[-1]


def config(**changes: Any) -> Change:
    return written(CONFIG, **changes)


def tokens(*more: tuple[str, Any]) -> Change:
    """Give <a_0>, <a_1>, <b_0> and <b_1> the tokens 0 to 3, and others theirs."""
    pairs = [*zip(texts((0, 1), "<a_{}>", "<b_{}>"), range(4), strict=True), *more]
    return written(TOKENIZER, added_tokens=[{"content": text, "id": at} for text, at in pairs])


UNSUPPORTED: dict[str, Any] = {
    "is_encoder_decoder": True,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "quantization_config": {"bits": 4},
    "hidden_act": "gelu",
    "attention_bias": True,
    "mlp_bias": True,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "rope_parameters": {"rope_type": "yarn"},
    "partial_rotary_factor": 0.5,
}
FAULTS: list[tuple[str, Change | dict[str, Any], str]] = [
    *((CONFIG, config(model_type=x), "only qwen3") for x in ("qwen3_moe", "gpt2", None, (1,))),
    *((CONFIG, config(**{k: v}), f"{k}: {v!r} is not supp") for k, v in UNSUPPORTED.items()),
    (CONFIG, config(model_type="mistral", sliding_window=64), "sliding_window: 64 is not supp"),
    (CONFIG, config(model_type="mistral"), "sliding_window: 4096 is not supported, only null"),
    (CONFIG, config(rope_parameters={"rope_theta": 0}), "rope_theta: must be at least 1, got 0"),
    (CONFIG, config(num_key_value_heads=4), "heads: 6, not a multiple of 4 kv_heads"),
    (CONFIG, config(head_dim=7), "d_head: must be even"),
    (CONFIG, config(hidden_size=37, head_dim=None), "hidden_size: 37, not a multiple of 6"),
    (CONFIG, config(num_hidden_layers=10**9), "layers: must be at most 1000"),
    (CONFIG, config(rms_norm_eps=10**999), "rms_norm_eps: expected a finite number"),
    (CONFIG, config(bos_token_id=None), "bos_token_id: None cannot begin a prompt; give a --pro"),
    (CONFIG, config(bos_token_id=[3]), "bos_token_id: [3] cannot begin a prompt; give a --prompt"),
    ("", config(num_hidden_layers=3), "missing tensor 'model.layers.2.input_layernorm.weight'"),
    (WEIGHTS, config(num_hidden_layers=1), "unexpected tensor 'model.layers.1.input_layernorm"),
    (WEIGHTS, config(vocab_size=10**15), "embed_tokens.weight' must be [1000000000000000, 36]"),
    (WEIGHTS, config(intermediate_size=10**15), "gate_proj.weight' must be [1000000000000000, 3"),
    (WEIGHTS, config(model_type="qwen3", head_dim=10), "q_proj.weight' must be [60, 36]"),
    (TOKENIZER, lambda folder: (folder / TOKENIZER).unlink(), "missing; give --offsets"),
    (TOKENIZER, written(TOKENIZER, added_tokens=[]), "no token like '<a_{}>'"),
    (TOKENIZER, tokens(("<a_3>", 4)), "no token '<a_2>', but '<a_3>'; give --vocab-sizes if no S"),
    (TOKENIZER, tokens(("<a_1>", 5)), "'<a_1>' has the ids 1 and 5"),
    (TOKENIZER, tokens(("<a_2>", "5")), "expected texts and ids of tokens"),
    (" with these", tokens(("<a_2>", 1)), "a token twice"),
    (" with these", tokens(("<a_2>", 99)), "token 99, but the model has 0 to 34"),
    (TOKENIZER, {"vocab_sizes": (6, 5)}, "token '<a_6>', but the position has 6 codes; correct"),
    ("", {"vocab_sizes": (9, 5), "normalizer": "level"}, "2 codes of a position have no"),
    (TOKENIZER, {"vocab_sizes": (34, 5)}, "27 codes have no token, and fewer tokens are unused"),
    ("--sid-tokens", {"sid_tokens": ()}, "give either patterns or --offsets"),
    ("--sid-tokens <a>", {"sid_tokens": ("<a>",)}, "must have {} once, for the code"),
    ("--vocab-sizes", {"vocab_sizes": (7,)}, "1 sizes for 2 positions; give one for each"),
    ("--vocab-sizes", {"sid_tokens": (), "offsets": (23, 30)}, "missing; give each position's c"),
    ("prompt.yaml", {"prompt": "{prefix: [35]}"}, "prompt: token 35, but the model has 0 to 34"),
    ("prompt.yaml", {"prompt": "{suffix: 3}"}, "suffix: expected a list, got 3 (an integer)"),
]


@pytest.mark.parametrize(("place", "change", "fault"), FAULTS, ids=[row[2] for row in FAULTS])
def test_what_is_wrong_in_a_folder_or_its_options_is_named(
    place: str, change: Change | dict[str, Any], fault: str, folder: Path, tmp_path: Path
) -> None:
    changes = change if isinstance(change, dict) else {}
    if not isinstance(change, dict):
        change(folder)
    if "prompt" in changes:
        (tmp_path / "prompt.yaml").write_text(changes["prompt"])
        changes = {"prompt": tmp_path / "prompt.yaml"}
    with pytest.raises(GraceError) as caught:
        import_causal(folder, replace(LAYOUT, **changes))
    assert place in str(caught.value).partition(fault)[0]
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_file_that_says_tied_may_have_a_head(is_tied: bool, tmp_path: Path) -> None:
    """The weights decide, as in transformers 5."""
    transformers = pytest.importorskip("transformers")
    embed = write_causal(CausalShape("qwen3", ADDED, config=TIED), tmp_path).lm_head.weight.detach()
    head = embed.clone() if is_tied else embed.flip(0)
    weights(lambda x: x.update({"lm_head.weight": head}))(tmp_path)
    ours = import_causal(tmp_path, LAYOUT).model
    assert ours.spec.causal.tied_head is is_tied
    assert_equal_function(ours, transformers.AutoModelForCausalLM.from_pretrained(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70) | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["default", "linear", None])
ROPES = st.fixed_dictionaries({}, optional={"rope_type": KINDS, "rope_theta": st.floats(1) | JSON})


@given(st.data())
def test_any_value_of_any_key_is_refused_in_a_line_or_gives_the_function_of_transformers(
    made: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    transformers = pytest.importorskip("transformers")
    source = made / data.draw(st.sampled_from(sorted(OF_FAMILY)))
    values = json.loads((source / CONFIG).read_text())
    key = data.draw(st.sampled_from(sorted({*values, *UNSUPPORTED, "rope_theta", "head_dim"})))
    if key in ("rope_scaling", "rope_theta"):  # as transformers 4 writes them
        del values["rope_parameters"]
    values[key] = data.draw(JSON | ROPES if "rope" in key else JSON)
    folder = tmp_path_factory.mktemp("changed")
    for name in (WEIGHTS, TOKENIZER):
        (folder / name).symlink_to(source / name)
    (folder / CONFIG).write_text(json.dumps(values))
    try:
        ours = import_causal(folder, LAYOUT).model
    except GraceError as error:
        assert str(error).startswith(str(folder))
        assert "\n" not in str(error)
        return
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        theirs(torch.tensor([[3]]))
    except Exception:  # noqa: BLE001 - it also refuses keys that change nothing
        return
    assert_equal_function(ours, theirs)
