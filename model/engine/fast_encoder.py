"""The fast encoders: the functions of `grace.model.definition` with fewer launches and copies.

An InterFormer's tokens of all kinds are in one tensor: gated summaries, the user's tokens, then
each sequence with its summaries first. Every product reads and writes its tokens there, so no
summary is copied, and the products of all sequences are one launch.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.kernels.encoder.token_product import After, Norm, Run, empty_squares
from grace.model.definition.inputs import FeatureTensors, UserContext, map_tensors, named_tensors
from grace.model.definition.interformer import InterFormerEncoder
from grace.model.definition.model import Model
from grace.model.definition.spec import InterFormerSpec
from grace.model.definition.t5_encoder import T5Encoder
from grace.model.engine.encoder_weights import (
    FastEncoderWeights,
    FastFeedForward,
    FastPool,
    FastSelfAttention,
    FastSequences,
)


class FastEncoder(Protocol):
    def __call__(self, features: FeatureTensors) -> UserContext:
        """Encode features of this encoder's precision, which it does not change."""

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights in this encoder's precision, by name."""


def fast_encoder(model: Model, dtype: torch.dtype, ops: EncoderOps) -> FastEncoder:
    """Return the model's encoder, of copies of its weights on their device."""
    if isinstance(model.encoder, T5Encoder):
        return _FastT5(model.encoder, dtype, ops)
    lengths = [each.max_length for each in model.spec.sequences.values()]
    return FastInterFormer(model.encoder, lengths, dtype, ops)


class _FastT5:
    """The definition, with fast operations."""

    def __init__(self, encoder: T5Encoder, dtype: torch.dtype, ops: EncoderOps) -> None:
        self._encoder = copy.deepcopy(encoder).to(dtype).eval().requires_grad_(False)
        self._ops = ops

    @torch.inference_mode()
    def __call__(self, features: FeatureTensors) -> UserContext:
        context: UserContext = self._encoder(features, self._ops)
        return context

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self._encoder.named_parameters()


class _Tokens(NamedTuple):
    """states [B, T, d], and their squares, float32 [B, T, parts]"""

    states: Tensor
    squares: Tensor

    @staticmethod
    def empty(shape: Sequence[int], like: Tensor) -> "_Tokens":
        states = like.new_empty(shape)
        return _Tokens(states, empty_squares(states))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the tokens of a request are, and their places in a tensor of these tokens alone.

    user      the user's tokens
    exchange  gated summaries and the user's tokens
    memory    the user's tokens and all sequences
    events    each sequence, its summaries first
    gates     each sequence's summaries, and where they are once they are gated
    """

    user: Run
    exchange: Run
    memory: Run
    events: tuple[Run, ...]
    gates: tuple[Run, ...]

    @staticmethod
    def of(spec: InterFormerSpec, lengths: Sequence[int]) -> "_Places":
        m, own = spec.summary_tokens, spec.non_sequence_tokens
        gated = m * len(lengths)
        counts = [m + length for length in lengths]
        begins = [0, *accumulate(counts)]
        events = [
            Run(gated + own + begin, begin, count)
            for begin, count in zip(begins, counts, strict=False)
        ]
        return _Places(
            user=Run(gated, 0, own),
            exchange=Run(0, 0, gated + own),
            memory=Run(gated, 0, own + sum(counts)),
            events=tuple(events),
            gates=tuple(Run(run.source, i * m, m) for i, run in enumerate(events)),
        )


class FastInterFormer:
    def __init__(
        self,
        encoder: InterFormerEncoder,
        lengths: Sequence[int],
        dtype: torch.dtype,
        ops: EncoderOps,
    ) -> None:
        """`lengths` are the sequences' maximum numbers of events."""
        folded = FastEncoderWeights.of(encoder)
        self._weights = map_tensors(folded, lambda weight: weight.to(dtype, copy=True))
        self._ops = ops
        self._spec = encoder.spec
        self._places = _Places.of(encoder.spec, lengths)

    @torch.inference_mode()
    def __call__(self, features: FeatureTensors) -> UserContext:
        weights, places = self._weights, self._places
        assert features.non_sequence is not None
        states = [sequence.states for sequence in features.sequences]
        masks = [sequence.mask for sequence in features.sequences]
        *arranged, mask = self._ops.arrange_tokens(
            weights.summaries, features.non_sequence, states, masks
        )
        tokens = _Tokens(*arranged)
        for block in weights.blocks:
            user = self._pooled(block.summarise, tokens, places.user)
            user = self._product(user, block.gate_out, _all_of(user), "gate")
            if block.sequences is not None:
                self._read_sequences(block.sequences, tokens, user, mask[:, places.user.length :])
            self._interact(block.interact, tokens)
            self._feed_forward(block.feed_forward, tokens, (places.user,))
        context = self._pooled(weights.pool, tokens, places.memory, mask)
        self._feed_forward(weights.feed_forward, context, _all_of(context))
        normed = self._ops.rms_norm(context.states, weights.final_norm, self._spec.norm_eps)
        return UserContext(normed, mask.new_ones(normed.shape[:2]))

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return named_tensors(self._weights)

    def _pooled(
        self, layer: FastPool, tokens: _Tokens, memory: Run, mask: Tensor | None = None
    ) -> _Tokens:
        """Return [B, queries, d]: what the layer's queries find in the memory, added to them."""
        batch = len(tokens.states)
        keys, values = self._product(tokens, layer.kv, (memory,)).states.chunk(2, dim=-1)
        attended = self._attention(layer.projected.expand(batch, -1, -1), keys, values, mask)
        out = _Tokens.empty(attended.shape, attended)
        queries = layer.queries.expand(batch, -1, -1)
        self._ops.token_product(
            *(attended, layer.out, out.states, _all_of(out), "add", queries), squares=out.squares
        )
        return out

    def _read_sequences(
        self, layers: FastSequences, tokens: _Tokens, user: _Tokens, mask: Tensor
    ) -> None:
        """Update the sequences for the user, [B, m, d], and then the gated summaries."""
        events = self._places.events
        begins, counts = [run.source for run in events], [run.length for run in events]
        mean = _Tokens(*self._ops.share_user(*tokens, user.states, begins))
        openings = self._product(mean, layers.personal, _all_of(mean)).states
        qkv = self._product(tokens, layers.attention.qkv, events).states
        queries, keys, values = qkv.chunk(3, dim=-1)
        attended = self._attention(queries, keys, values, mask, counts)
        self._add(tokens, attended, layers.attention.out, events)
        hidden = self._product(tokens, layers.feed_forward.ffn_in, events, "open", openings)
        self._add(tokens, hidden.states, layers.feed_forward.ffn_out, events)
        gate_in = layers.gate_in.expand(len(events), -1, -1)
        self._product(tokens, gate_in, self._places.gates, "gate", out=tokens)

    def _interact(self, layer: FastSelfAttention, tokens: _Tokens) -> None:
        """Update the user's tokens by what the gated summaries say."""
        places = self._places
        qkv = self._product(tokens, layer.qkv, (places.exchange,)).states
        queries, keys, values = qkv.chunk(3, dim=-1)
        attended = self._attention(queries[:, places.user.source :], keys, values)
        self._add(tokens, attended, layer.out, (places.user,))

    def _feed_forward(self, layer: FastFeedForward, tokens: _Tokens, runs: Sequence[Run]) -> None:
        hidden = self._product(tokens, layer.ffn_in, runs, "relu").states
        self._add(tokens, hidden, layer.ffn_out, runs)

    def _product(
        self,
        tokens: _Tokens,
        weight: Tensor,
        runs: Sequence[Run],
        after: After = "nothing",
        other: Tensor | None = None,
        out: _Tokens | None = None,
    ) -> _Tokens:
        """Return the product of the runs' normed tokens; without `out`, of these tokens alone."""
        if out is None:
            shape = len(tokens.states), sum(run.length for run in runs), weight.shape[1]
            out = _Tokens.empty(shape, tokens.states)
        norm = Norm(tokens.squares, self._spec.norm_eps)
        squares = out.squares if after == "gate" else None  # no norm reads the others
        self._ops.token_product(
            *(tokens.states, weight, out.states, runs, after, other, norm, squares)
        )
        return out

    def _add(self, tokens: _Tokens, x: Tensor, weight: Tensor, runs: Sequence[Run]) -> None:
        """Add a product of x, which has the runs' tokens alone, to these tokens."""
        back = [Run(run.target, run.source, run.length) for run in runs]
        states, squares = tokens
        self._ops.token_product(x, weight, states, back, "add", states, squares=squares)

    def _attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        parts: Sequence[int] | None = None,
    ) -> Tensor:
        heads = self._spec.heads
        scale = (self._spec.d_model // heads) ** -0.5
        return self._ops.attention(queries, keys, values, heads, scale, mask, parts=parts)


def _all_of(tokens: _Tokens) -> tuple[Run]:
    return (Run(0, 0, tokens.states.shape[1]),)
