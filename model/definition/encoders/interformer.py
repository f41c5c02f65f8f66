"""The InterFormer encoder: every kind of input, pooled to `context_tokens` vectors.

A request is N non-sequence tokens X and, for each event sequence i, its events E_i and m summary
tokens S_i. Each block lets them learn from each other, by summaries that gates thin out:

    u     = gate_out(attend(queries, X))                what the sequences are told, [m, d]
    E, S  = sequences.i: attend within [S_i + u; E_i], then a feed-forward of which u opens and
            shuts the hidden units: the same event weighs differently for different users
    X     = attend(X, [X; gate_in(S_1); gate_in(S_2); ...]), then a feed-forward

In the end learned queries attend over all of it. Summary tokens are keys of every attention within
a sequence, so an empty sequence is no special case. Attention and feed-forward are pre-norm and
residual. docs/model.md has the formulas, and what is the paper's and what is ours.

Parameters, all [out, in], with m = summary_tokens:

summaries.i          [m, d]   S_i before the first block
blocks.j.queries     [m, d]
blocks.j.{summarise, interact}, blocks.j.sequences.i.attention, pool.    norm, q, kv, out
blocks.j.{gate_out, gate_in}.                                            norm, weight [d, d]
blocks.j.feed_forward, feed_forward.                                     norm, ffn_in, ffn_out
blocks.j.sequences.i.feed_forward.       norm, ffn_in, ffn_out, personal_norm, personal [d_ff, d]
queries              [context_tokens, d]
final_norm           [d]
"""

import torch
from torch import Tensor, nn

from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER, EncoderOps
from grace.model.definition.encoders.interformer_layers import (
    Attention,
    FeedForward,
    Gate,
    PersonalFeedForward,
)
from grace.model.definition.inputs import (
    FeatureTensors,
    SequenceTensors,
    UserContext,
    inputs_of_kind,
)
from grace.model.definition.spec import InterFormerSpec, ModelSpec, SequenceInput

__all__ = ["InterFormerEncoder"]


class InterFormerEncoder(nn.Module):
    def __init__(self, spec: InterFormerSpec, model: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        sequences = len(inputs_of_kind(model, SequenceInput))
        self.summaries = nn.ParameterList(
            nn.Parameter(torch.empty(spec.summary_tokens, spec.d_model)) for _ in range(sequences)
        )
        self.blocks = nn.ModuleList(InterFormerBlock(spec, sequences) for _ in range(spec.blocks))
        self.queries = nn.Parameter(torch.empty(spec.context_tokens, spec.d_model))
        self.pool = Attention(spec)
        self.feed_forward = FeedForward(spec)
        self.final_norm = nn.Parameter(torch.ones(spec.d_model))

    def forward(self, features: FeatureTensors, ops: EncoderOps = PLAIN_ENCODER) -> UserContext:
        assert features.non_sequence is not None
        tokens = features.non_sequence.clone()
        batch = len(tokens)
        sequences = tuple(
            _with_summary(summary.expand(batch, -1, -1), sequence)
            for summary, sequence in zip(self.summaries, features.sequences, strict=True)
        )
        for block in self.blocks:
            tokens, sequences = block(tokens, sequences, ops)
        memory = torch.cat([tokens, *(sequence.states for sequence in sequences)], dim=1)
        mask = torch.cat(
            [tokens.new_ones(tokens.shape[:2], dtype=torch.bool), *(s.mask for s in sequences)],
            dim=1,
        )
        context = self.pool(self.queries.repeat(batch, 1, 1), memory, ops, mask)
        context = self.feed_forward(context, ops)
        context = ops.rms_norm(context, self.final_norm, self.spec.norm_eps)
        return UserContext(context, context.new_ones(context.shape[:2], dtype=torch.bool))


class InterFormerBlock(nn.Module):
    """Sequences are [B, m + T, d] here: their summary tokens, then their events."""

    def __init__(self, spec: InterFormerSpec, sequences: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(spec.summary_tokens, spec.d_model))
        self.summarise = Attention(spec)
        self.gate_out = Gate(spec)
        self.sequences = nn.ModuleList(SequenceLayer(spec) for _ in range(sequences))
        self.gate_in = Gate(spec)
        self.interact = Attention(spec)
        self.feed_forward = FeedForward(spec)

    def forward(
        self, tokens: Tensor, sequences: tuple[SequenceTensors, ...], ops: EncoderOps
    ) -> tuple[Tensor, tuple[SequenceTensors, ...]]:
        """tokens [B, N, d]"""
        queries = self.queries.repeat(len(tokens), 1, 1)
        told = self.gate_out(self.summarise(queries, tokens, ops), ops)
        user = told.mean(dim=1)
        sequences = tuple(
            layer(sequence, told, user, ops)
            for layer, sequence in zip(self.sequences, sequences, strict=True)
        )
        summaries = [sequence.states[:, : len(self.queries)] for sequence in sequences]
        heard = [self.gate_in(summary, ops) for summary in summaries]
        tokens = self.interact(tokens, torch.cat([tokens, *heard], dim=1), ops)
        return self.feed_forward(tokens, ops), sequences


class SequenceLayer(nn.Module):
    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.attention = Attention(spec)
        self.feed_forward = PersonalFeedForward(spec)

    def forward(
        self, sequence: SequenceTensors, told: Tensor, user: Tensor, ops: EncoderOps
    ) -> SequenceTensors:
        """told [B, m, d], added to the sequence's summary tokens; user [B, d], its mean"""
        summary = sequence.states[:, : told.shape[1]] + told
        states = torch.cat([summary, sequence.states[:, told.shape[1] :]], dim=1)
        states = self.attention(states, states, ops, sequence.mask)
        return SequenceTensors(self.feed_forward(states, user, ops), sequence.mask)


def _with_summary(summary: Tensor, sequence: SequenceTensors) -> SequenceTensors:
    """summary [B, m, d] goes before the events, and is always there."""
    there = summary.new_ones(summary.shape[:2], dtype=torch.bool)
    return SequenceTensors(
        torch.cat([summary, sequence.states], dim=1), torch.cat([there, sequence.mask], dim=1)
    )
