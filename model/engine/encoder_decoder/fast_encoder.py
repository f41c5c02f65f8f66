"""The fast encoders: the functions of `grace.model.definition` with fewer launches and copies.

An InterFormer's tokens of all kinds are in one tensor: gated summaries, the user's tokens, then
each sequence with its summaries first. Every product reads and writes its tokens there, so no
summary is copied, and the products of all sequences are one launch.

Most tokens are events. Between two attentions within sequences, only the events' own products read
them, and these products fill a GPU. The user's tokens and summaries need many small products, one
after the other. They run at the same time, on a side stream.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from grace.kernels import require_device
from grace.kernels.encoder.encoder_attention import Part, TokenQueries
from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.kernels.encoder.token_product import After, Norm, Run, TokenProduct, empty_squares
from grace.model.definition.inputs import FeatureTensors, UserContext, map_tensors
from grace.model.definition.interformer import InterFormerEncoder
from grace.model.definition.model import Model
from grace.model.definition.t5_encoder import T5Encoder
from grace.model.definition.t5_spec import InterFormerSpec
from grace.model.engine.encoder_decoder.encoder_weights import (
    FastBlock,
    FastEncoderWeights,
    FastFeedForward,
    FastPool,
    FastSelfAttention,
    FastSequences,
)

FastEncoder: TypeAlias = Callable[[FeatureTensors], UserContext]
"""The encoder reads features in its precision, and does not change them."""


def fast_encoder(model: Model, dtype: torch.dtype, ops: EncoderOps) -> FastEncoder:
    """Return the model's encoder with copies of its weights, on their device."""
    if isinstance(model.encoder, T5Encoder):
        own = copy.deepcopy(model.encoder).to(dtype).eval().requires_grad_(False)
        return torch.inference_mode()(partial(own, ops=ops))
    lengths = [each.max_length for each in model.spec.sequences.values()]
    return FastInterFormer(model.encoder, lengths, dtype, ops)


class _Tokens(NamedTuple):
    """states [B, T, d], and their squares, float32 [B, T, parts]"""

    states: Tensor
    squares: Tensor

    @staticmethod
    def empty_like(states: Tensor) -> "_Tokens":
        empty = states.new_empty(states.shape)
        return _Tokens(empty, empty_squares(empty))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the tokens of a request are, and their places in a tensor of these tokens alone."""

    user: Run  # the user's tokens
    exchange: Run  # gated summaries and the user's tokens
    all: tuple[Run, ...]  # each sequence, its summaries first
    events: tuple[Run, ...]  # each sequence's events, and their places in `all`
    summaries: tuple[Run, ...]  # each sequence's summaries, likewise
    gates: tuple[Run, ...]  # each sequence's summaries, and where they are once they are gated

    @staticmethod
    def of(spec: InterFormerSpec, lengths: Sequence[int]) -> "_Places":
        m, own = spec.summary_tokens, spec.non_sequence_tokens
        gated = m * len(lengths)
        counts = [m + length for length in lengths]
        begins = [0, *accumulate(counts)]
        runs = [
            Run(gated + own + begin, begin, count)
            for begin, count in zip(begins, counts, strict=False)
        ]
        return _Places(
            user=Run(gated, 0, own),
            exchange=Run(0, 0, gated + own),
            all=tuple(runs),
            events=tuple(Run(r.source + m, r.target + m, r.length - m) for r in runs),
            summaries=tuple(Run(run.source, run.target, m) for run in runs),
            gates=tuple(Run(run.source, i * m, m) for i, run in enumerate(runs)),
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """The inputs of a block's sequences, and memory for their results."""

    layers: FastSequences
    mask: Tensor  # bool [B, T] of all sequences' tokens
    openings: Tensor  # [B, 1, runs * d_ff] by which hidden rows are multiplied
    qkv: Tensor  # [B, T, 3 * d]: queries, keys and values
    attended: Tensor  # [B, T, d]
    hidden: Tensor  # [B, T, d_ff]

    @staticmethod
    def empty(layers: FastSequences, mask: Tensor, like: Tensor) -> "_Reading":
        runs, d_ff, d = layers.feed_forward.ffn_in.shape
        openings = like.new_empty((len(mask), 1, runs * d_ff))
        per_token = (like.new_empty((*mask.shape, width)) for width in (3 * d, d, d_ff))
        return _Reading(layers, mask, openings, *per_token)


class SideStream:
    """Work that may run at the same time as the caller's later work; on a CPU it runs at once.

    A chain of small kernels leaves most of a GPU idle, and large kernels fill it. So the side
    stream has the higher priority: its kernels start as soon as an SM has room.

    Memory belongs to the stream that allocated it. So keep a reference to every tensor that both
    streams use, from before `fork` until after `join`. Both methods work within the recording of a
    CUDA graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        require_device(device)
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Put the work of the `with` block on the side stream, after all earlier work."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the caller's later work wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


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
        self._side = SideStream(encoder.queries.device)

    @torch.inference_mode()
    def __call__(self, features: FeatureTensors) -> UserContext:
        weights = self._weights
        assert features.non_sequence is not None
        states = [sequence.states for sequence in features.sequences]
        masks = [sequence.mask for sequence in features.sequences]
        *arranged, mask = self._ops.arrange_tokens(
            weights.summaries, features.non_sequence, states, masks
        )
        tokens = _Tokens(*arranged)
        before: FastBlock | None = None
        reading: _Reading | None = None
        for block in weights.blocks:
            reading = self._exchange(before, reading, block, tokens, mask)
            before = block
        context = self._pooled_context(reading, tokens, mask)
        self._feed_forward(weights.feed_forward, context, _all_of(context))
        normed = self._ops.rms_norm(context.states, weights.final_norm, self._spec.norm_eps)
        return UserContext(normed, mask.new_ones(normed.shape[:2]))

    def _exchange(
        self,
        before: FastBlock | None,
        reading: _Reading | None,
        block: FastBlock,
        tokens: _Tokens,
        mask: Tensor,
    ) -> _Reading | None:
        """Finish the block before, and return what the sequences of this one read."""
        places, after = self._places, None
        if block.sequences is not None:
            after = _Reading.empty(block.sequences, mask[:, places.user.length :], tokens.states)
        with self._side.fork():
            if before is not None:
                self._update_user(before, reading, tokens)
            kv = self._product(tokens, block.summarise.kv, (places.user,))
            user = self._attend_to(block.summarise, kv)
            user = self._gate(user, block.gate_out, _all_of(user), _Tokens.empty_like(user.states))
            if after is not None:
                begins = [run.source for run in places.summaries]
                mean = _Tokens(*self._ops.share_user(*tokens, user.states, begins))
                self._project(after, tokens, places.summaries)
                personal, openings = after.layers.personal, after.openings
                self._product(mean, personal, _all_of(mean), "opening", out=openings)
        if reading is not None:
            self._read(reading, tokens, places.events)
        if after is not None:
            self._project(after, tokens, places.events)
        self._side.join()
        return after

    def _pooled_context(self, reading: _Reading | None, tokens: _Tokens, mask: Tensor) -> _Tokens:
        """Finish the last block, and pool all tokens but the gated summaries."""
        places, layer = self._places, self._weights.pool
        own, d = places.user.length, tokens.states.shape[2]
        kv = tokens.states.new_empty((*mask.shape, 2 * d))

        def project(*runs: Run) -> None:
            self._product(tokens, layer.kv.expand(len(runs), -1, -1), runs, out=kv)

        events, summaries = (
            [Run(run.source, own + run.target, run.length) for run in runs]
            for runs in (places.events, places.summaries)
        )
        with self._side.fork():
            self._update_user(self._weights.blocks[-1], reading, tokens)
            project(places.user, *summaries)
        if reading is not None:
            self._read(reading, tokens, places.events)
            project(*events)
        self._side.join()
        return self._attend_to(layer, kv, mask)

    def _update_user(self, block: FastBlock, reading: _Reading | None, tokens: _Tokens) -> None:
        """Update the summaries of sequences, and then the user's tokens from them."""
        if reading is not None:
            self._read(reading, tokens, self._places.summaries)
            self._gate(tokens, reading.layers.gate_in, self._places.gates, out=tokens)
        self._interact(block.interact, tokens)
        self._feed_forward(block.feed_forward, tokens, (self._places.user,))

    def _project(self, reading: _Reading, tokens: _Tokens, runs: Sequence[Run]) -> None:
        """Write these tokens' queries, keys and values."""
        self._product(tokens, reading.layers.attention.qkv, runs, out=reading.qkv)

    def _read(self, reading: _Reading, tokens: _Tokens, runs: Sequence[Run]) -> None:
        """Update these tokens by attention to their whole sequence."""
        layers = reading.layers
        queries, keys, values = reading.qkv.chunk(3, dim=-1)
        parts = [
            Part(run.target, run.length, whole.target, whole.length)
            for run, whole in zip(runs, self._places.all, strict=True)
        ]
        self._attention(queries, keys, values, reading.mask, parts, reading.attended)
        self._add(tokens, reading.attended, layers.attention.out, runs)
        ffn_in, hidden = layers.feed_forward.ffn_in, reading.hidden
        self._product(tokens, ffn_in, runs, "open", reading.openings, hidden)
        self._add(tokens, hidden, layers.feed_forward.ffn_out, runs)

    def _attend_to(self, layer: FastPool, kv: Tensor, mask: Tensor | None = None) -> _Tokens:
        """Return the layer's queries plus their attention to the memory.   -> [B, queries, d]"""
        keys, values = kv.chunk(2, dim=-1)
        batch = len(kv)
        attended = self._attention(layer.projected.expand(batch, -1, -1), keys, values, mask)
        out = _Tokens.empty_like(attended)
        queries = layer.queries.expand(batch, -1, -1)
        product = TokenProduct(attended, layer.out, out.states, _all_of(out), "add", queries)
        self._ops.token_product(replace(product, squares=out.squares))
        return out

    def _interact(self, layer: FastSelfAttention, tokens: _Tokens) -> None:
        """Update the user's tokens from the gated summaries and themselves."""
        places = self._places
        qkv = self._product(tokens, layer.qkv, (places.exchange,))
        queries, keys, values = qkv.chunk(3, dim=-1)
        attended = self._attention(queries[:, places.user.source :], keys, values)
        self._add(tokens, attended, layer.out, (places.user,))

    def _feed_forward(self, layer: FastFeedForward, tokens: _Tokens, runs: Sequence[Run]) -> None:
        hidden = self._product(tokens, layer.ffn_in, runs, "relu")
        self._add(tokens, hidden, layer.ffn_out, runs)

    def _product(
        self,
        tokens: _Tokens,
        weight: Tensor,
        runs: Sequence[Run],
        after: After = "nothing",
        other: Tensor | None = None,
        out: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Tensor:
        """Return the product of the runs' normed tokens; without `out`, of these tokens alone."""
        if out is None:
            shape = len(tokens.states), sum(run.length for run in runs), weight.shape[1]
            out = tokens.states.new_empty(shape)
        norm = Norm(tokens.squares, self._spec.norm_eps)
        product = TokenProduct(tokens.states, weight, out, runs, after, other, norm, squares)
        return self._ops.token_product(product)

    def _gate(self, tokens: _Tokens, weight: Tensor, runs: Sequence[Run], out: _Tokens) -> _Tokens:
        """Write the part of the runs' tokens that passes to `out`."""
        weight = weight.expand(len(runs), -1, -1)
        self._product(tokens, weight, runs, "gate", out=out.states, squares=out.squares)
        return out

    def _add(self, tokens: _Tokens, x: Tensor, weight: Tensor, runs: Sequence[Run]) -> None:
        """Add a product of x, which has the runs' tokens alone, to these tokens."""
        back = [Run(run.target, run.source, run.length) for run in runs]
        states, squares = tokens
        product = TokenProduct(x, weight, states, back, "add", states, squares=squares)
        self._ops.token_product(product)

    def _attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        parts: Sequence[Part] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        heads = self._spec.heads
        scale = (self._spec.d_model // heads) ** -0.5
        asked = TokenQueries(queries, keys, values, heads, scale, mask, None, parts, out)
        return self._ops.attention(asked)


def _all_of(tokens: _Tokens) -> tuple[Run]:
    return (Run(0, 0, tokens.states.shape[1]),)
