"""Import a Hugging Face folder of a causal language model as a model with the same scores.

The families are Qwen3, Qwen2 (and Qwen2.5), LLaMA and Mistral. The import refuses by name every
setting that GRACE does not compute. It ignores dropout, which is for training only. Each weight
keeps its type.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.options import CausalLayout, Option
from grace.configs.sections import Section, load_section
from grace.configs.strict_json import shown
from grace.configs.yaml_loader import read_yaml
from grace.model.checkpoints.checkpoint import empty_model
from grace.model.checkpoints.hugging_face import HfFolder, HfTensors, open_folder
from grace.model.checkpoints.sid_tokens import Imported, find_sid_tokens
from grace.model.definition import causal_spec
from grace.model.definition.model import CausalModel
from grace.model.definition.spec import Epsilon, Size

FAMILIES: Mapping[str, Mapping[str, bool]] = {
    "qwen3": {"qk_norm": True},
    "qwen2": {"qkv_bias": True},
    "llama": {},
    "mistral": {},
}

_NO = (None, False)
_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": _NO,
    "num_experts": _NO,
    "num_local_experts": _NO,
    "n_routed_experts": _NO,
    "quantization_config": _NO,
    "hidden_act": ("silu",),
    "attention_bias": _NO,
    "mlp_bias": _NO,
    "use_sliding_window": _NO,
    "partial_rotary_factor": (None, 1),
}
"""The values that a key may have. An absent key has the first. Zero counts as false."""

_ROPE: Mapping[str, tuple[object, ...]] = {
    "rope_type": ("default",),
    "type": ("default",),
    "partial_rotary_factor": (1,),
}
_WINDOW_OF_MISTRAL = 4096  # without the key

Parts: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]
"""The folder's weights, with shapes, that one weight of a checkpoint concatenates."""


@dataclass(frozen=True, slots=True)
class CausalConfig(Section):
    """The keys of config.json that affect the model's function, and their names in `causal`."""

    vocab_size: Annotated[Size, "num_tokens"]
    hidden_size: Annotated[Size, "d_model"]
    intermediate_size: Annotated[Size, "d_ff"]
    num_hidden_layers: Annotated[Size, "layers"]
    num_attention_heads: Annotated[Size, "heads"]
    num_key_value_heads: Annotated[int | None, Option(least=1)] = None
    head_dim: Annotated[int | None, Option(least=1)] = None
    rms_norm_eps: Annotated[Epsilon, "norm_eps"] = 1e-6
    rope_theta: Annotated[float, Option("rope_theta", least=1)] = 10_000.0
    tie_word_embeddings: Annotated[bool, "tied_head"] = False

    def faults(self) -> Iterator[str]:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            yield (
                f"hidden_size: {self.hidden_size}, not a multiple of {self.num_attention_heads} "
                "num_attention_heads; write head_dim"
            )


def import_causal(folder: Path, layout: CausalLayout) -> Imported[CausalModel]:
    """Return the model on the CPU. Its weights keep their stored type."""
    source = open_folder(folder)
    config, causal = read_config(source)
    prompt = _prompt(source, layout)
    vocabulary = find_sid_tokens(folder, layout, config.vocab_size)
    history = {"kind": "sequence", "max_length": layout.max_history}
    values = {
        "sid_space": layout.sid_space,
        "vocab_sizes": vocabulary.vocab_sizes,
        "decoder": {"causal": asdict(causal)},
        "sid_tokens": [asdict(tokens) for tokens in vocabulary.sid_tokens],
        "prompt": asdict(prompt),
        "inputs": {prompt.history: history} if prompt.history else {},
        "normalizer": layout.normalizer,
    }
    place = f"{folder} with {layout.prompt or 'these options'}"
    spec = load_section(causal_spec.CausalModelSpec, values, place)
    with source.tensors(lambda name: name.endswith(".rotary_emb.inv_freq")) as tensors:
        state = _state(tensors, causal)
        tensors.require_all_used()
    causal = replace(causal, tied_head="decoder.head" not in state)
    model = empty_model(replace(spec, decoder=causal_spec.CausalDecoderSpec(causal)))
    assert isinstance(model, CausalModel)
    model.load_state_dict(state, assign=True)
    return Imported(model.eval(), vocabulary.without_token)


def read_config(source: HfFolder) -> tuple[CausalConfig, causal_spec.CausalSpec]:
    """Check config.json. Return its keys, and the decoder's sizes in GRACE's terms."""
    family = source.values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        fault = f"model_type: {shown(family)} is not imported, only {', '.join(FAMILIES)}"
        raise ConfigError(f"{source.config}: {fault}; for T5, see `grace import-t5 --help`")
    for fault in _unsupported(source.values, family):
        raise ConfigError(f"{source.config}: {fault}")
    rope = _rope(source.values)[1]
    config = source.keys(CausalConfig, **{key: rope[key] for key in rope if key == "rope_theta"})
    causal = {
        **{name: getattr(config, key) for name, key in source.keys_by_name(CausalConfig).items()},
        "kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "d_head": config.head_dim or config.hidden_size // config.num_attention_heads,
        **FAMILIES[family],
    }
    return config, load_section(causal_spec.CausalSpec, causal, source.config)


def _unsupported(values: Mapping[str, Any], family: str) -> Iterator[str]:
    """Yield the settings that GRACE does not compute."""
    for key, allowed in _SUPPORTED.items():
        if (value := values.get(key, allowed[0])) not in allowed:
            yield f"{key}: {shown(value)} is not supported, only {allowed[-1]!r}"
    kinds = values.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        yield f"layer_types: {shown(kinds)} is not supported, only 'full_attention'"
    window = values.get("sliding_window", _WINDOW_OF_MISTRAL)
    if family == "mistral" and window is not None:
        yield f"sliding_window: {shown(window)} is not supported, only null"
    key, rope = _rope(values)
    known = {**_ROPE, "rope_theta": (rope.get("rope_theta"),)} if isinstance(rope, dict) else {}
    if not isinstance(rope, dict) or any(rope[name] not in known.get(name, ()) for name in rope):
        yield f"{key}: {shown(rope)} is not supported, only rope_type 'default' with a rope_theta"


def _rope(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the rotary key that transformers reads, and its value: version 5 has a new key."""
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    return key, values.get(key) or {}


def _prompt(source: HfFolder, layout: CausalLayout) -> causal_spec.PromptSpec:
    values: dict[str, Any] = {"history": "clicks"}
    if layout.prompt is not None:
        values |= read_yaml(layout.prompt)
    elif type(begin := source.values.get("bos_token_id")) is int:
        values["prefix"] = [begin]
    else:
        fault = f"bos_token_id: {shown(begin)} cannot begin a prompt; give a --prompt FILE"
        raise ConfigError(f"{source.config}: {fault}")
    if layout.history is not None:
        values["history"] = layout.history
    return load_section(causal_spec.PromptSpec, values, str(layout.prompt or source.config))


def _state(tensors: HfTensors, causal: causal_spec.CausalSpec) -> dict[str, Tensor]:
    """Return all weights, but no head if it is tied to the embeddings."""
    vocabulary = (causal.num_tokens, causal.d_model)
    state = {
        "decoder.embed": tensors.take("model.embed_tokens.weight", *vocabulary),
        "decoder.final_norm": tensors.take("model.norm.weight", causal.d_model),
    }
    # A folder whose config says tied may have a head. Then transformers 5 lets the weights decide.
    if not causal.tied_head or "lm_head.weight" in tensors:
        head = tensors.take("lm_head.weight", *vocabulary)
        if not (causal.tied_head and torch.equal(head, state["decoder.embed"])):
            state["decoder.head"] = head
    for layer in range(causal.layers):
        for ours, parts in _layer(causal).items():
            theirs = [tensors.take(f"model.layers.{layer}.{name}", *size) for name, size in parts]
            state[f"decoder.layers.{layer}.{ours}"] = torch.cat(theirs)
        if causal.qk_norm:
            gains = state[f"decoder.layers.{layer}.head_norm"]
            state[f"decoder.layers.{layer}.head_norm"] = gains.view(2, causal.d_head)
    return state


def _layer(causal: causal_spec.CausalSpec) -> dict[str, Parts]:
    """Return a layer's weights: each name here, and the names and shapes in the folder."""
    d, d_ff, d_head = causal.d_model, causal.d_ff, causal.d_head
    of_queries, of_keys = causal.heads * d_head, causal.kv_heads * d_head
    rows = {"q": of_queries, "k": of_keys, "v": of_keys}
    parts: dict[str, Parts] = {
        "self_norm": [("input_layernorm.weight", (d,))],
        "qkv": [(f"self_attn.{part}_proj.weight", (rows[part], d)) for part in rows],
        "self_out": [("self_attn.o_proj.weight", (d, of_queries))],
        "ffn_norm": [("post_attention_layernorm.weight", (d,))],
        "ffn_in": [(f"mlp.{part}_proj.weight", (d_ff, d)) for part in ("gate", "up")],
        "ffn_out": [("mlp.down_proj.weight", (d, d_ff))],
    }
    if causal.qkv_bias:
        parts["qkv_bias"] = [(f"self_attn.{part}_proj.bias", (rows[part],)) for part in rows]
    if causal.qk_norm:
        parts["head_norm"] = [(f"self_attn.{part}_norm.weight", (d_head,)) for part in "qk"]
    return parts
