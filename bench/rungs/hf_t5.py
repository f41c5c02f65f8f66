"""Hugging Face's T5 with a decoder of the same shape, and its beam search: what TIGER users run.

Tokens of position t are 2 + t * V + value; 0 pads, and 1 would end a sequence, which none reaches.
The user context is given, so that only the decoder is measured. With a trie, the search asks
`prefix_allowed_tokens_fn` about every beam, in Python.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from grace.index.trie import SidTrie
from grace.model.definition.t5_spec import DecoderSpec

AllowedTokens = Callable[[int, Tensor], list[int]]
"""Takes a request's number and the tokens of one of its beams, the start token first."""

HfModel: TypeAlias = Any
"""transformers' own annotations do not describe its models."""

_PAD, _END = 0, 1
_SPECIAL = 2


def hf_decoder(
    spec: DecoderSpec,
    vocab_sizes: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> HfModel:
    """Return a model of random weights, whose encoder never runs."""
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=_SPECIAL + sum(vocab_sizes),
        d_model=spec.d_model,
        d_kv=spec.d_head,
        d_ff=spec.d_ff,
        num_layers=spec.layers,  # the search makes as many caches
        num_decoder_layers=spec.layers,
        num_heads=spec.heads,
        feed_forward_proj="relu" if spec.ffn == "relu" else "gated-gelu",
        pad_token_id=_PAD,
        eos_token_id=_END,
        decoder_start_token_id=_PAD,
        dropout_rate=0.0,
    )
    model: HfModel = T5ForConditionalGeneration(config)
    return model.eval().to(device, dtype)


@torch.inference_mode()
def hf_generate(
    model: HfModel, states: Tensor, beams: int, sid_length: int, allowed: AllowedTokens | None
) -> Tensor:
    """states [B, T_ctx, d_model] -> int64 [B * beams, 1 + sid_length], best first per request"""
    options = GenerationConfig(
        num_beams=beams,
        num_return_sequences=beams,
        min_new_tokens=sid_length,
        max_new_tokens=sid_length,
        do_sample=False,
        early_stopping=False,
        length_penalty=0.0,
        pad_token_id=_PAD,
        eos_token_id=_END,
        decoder_start_token_id=_PAD,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its options warn about names of later versions
        generated: Tensor = model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=states.device),
            prefix_allowed_tokens_fn=allowed,
            generation_config=options,
        )
    return generated


@torch.inference_mode()
def plain_generate(
    model: HfModel, states: Tensor, beams: int, sid_length: int, allowed: AllowedTokens | None
) -> Tensor:
    """Return what `hf_generate` should find: the same search, request by request, without a cache.

    Every prefix goes through the whole decoder in every step; sums are in float32.
    """
    found = []
    for request, own in enumerate(states):
        sequences = torch.full((1, 1), _PAD, dtype=torch.long, device=states.device)
        scores = torch.zeros(1, device=states.device)
        for _ in range(sid_length):
            spread = own.expand(len(sequences), *own.shape)
            logits = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=spread),
                decoder_input_ids=sequences,
            ).logits[:, -1]
            totals = logits.float().log_softmax(dim=-1)
            totals[:, _END] = -torch.inf
            if allowed is not None:
                mask = torch.full_like(totals, -torch.inf)
                for row, sequence in enumerate(sequences.cpu()):
                    mask[row, allowed(request, sequence)] = 0.0
                totals = totals + mask
            totals = (totals + scores[:, None]).flatten()
            scores, places = totals.topk(min(beams, len(totals)))
            vocabulary = logits.shape[1]
            tokens = (places % vocabulary)[:, None]
            sequences = torch.cat([sequences[places // vocabulary], tokens], dim=1)
        found.append(sequences)
    return torch.cat(found)


def shared_sequences(found: Tensor, expected: Tensor, beams: int) -> float:
    """The share of the expected ones that were found, request by request.   [B * beams, 1 + L]"""
    of_requests = (x.view(-1, beams, x.shape[1]).tolist() for x in (found, expected))
    pairs = zip(*of_requests, strict=True)
    common = sum(len({*map(tuple, one)} & {*map(tuple, other)}) for one, other in pairs)
    return common / len(expected)


def allowed_by_trie(trie: SidTrie) -> AllowedTokens:
    """Return a function that walks the trie by tokens; a prefix outside the trie may only pad."""
    offsets, tokens = trie.node_offsets, trie.csr_tokens
    firsts = np.cumsum([_SPECIAL, *trie.vocab_sizes])

    def allowed(request: int, prefix: Tensor) -> list[int]:  # noqa: ARG001 (the caller's signature)
        values = prefix.tolist()[1:]
        node = 0
        for position, token in enumerate(values):
            begin, end = int(offsets[node]), int(offsets[node + 1])
            value = token - int(firsts[position])
            place = begin + int(np.searchsorted(tokens[begin:end], value))
            if value < 0 or place == end or int(tokens[place]) != value:
                return [_PAD]
            node = place + 1
        children = tokens[offsets[node] : offsets[node + 1]]
        continued: list[int] = (children + firsts[len(values)]).tolist()
        return continued

    return allowed
