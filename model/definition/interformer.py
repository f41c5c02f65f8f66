"""The InterFormer encoder: it reads every kind of input and returns `context_tokens` vectors.

A request is N non-sequence tokens X and, for each sequence i, events E_i and m summary tokens S_i.
In a block they exchange summaries, which gates thin out; at the end, learned queries attend over
everything. docs/model.md has the formulas, and says which choices are the paper's.
"""

import torch
from torch import Tensor, nn

from grace.kernels.encoder.encoder_attention import TokenQueries, encoder_attention_reference
from grace.kernels.row_stable import gate, linear, sigmoid
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition.inputs import FeatureTensors, SequenceTensors, UserContext
from grace.model.definition.t5_spec import InterFormerSpec


class InterFormerEncoder(nn.Module):
    """Parameters, all [out, in] and without bias, with m = summary_tokens:

    summaries.i          [m, d]   S_i before the first block
    blocks.j.queries     [m, d]
    blocks.j.{summarise, interact}, blocks.j.sequences.i.attention, pool.    norm, q, kv, out
    blocks.j.{gate_out, gate_in}.                                            norm, weight [d, d]
    blocks.j.feed_forward, feed_forward.                                     norm, ffn_in, ffn_out
    blocks.j.sequences.i.feed_forward.   norm, ffn_in, ffn_out, personal_norm, personal [d_ff, d]
    queries              [context_tokens, d]
    final_norm           [d]
    """

    def __init__(self, spec: InterFormerSpec, sequences: int) -> None:
        super().__init__()
        self.spec = spec
        self.summaries = nn.ParameterList(
            nn.Parameter(torch.empty(spec.summary_tokens, spec.d_model)) for _ in range(sequences)
        )
        self.blocks = nn.ModuleList(InterFormerBlock(spec, sequences) for _ in range(spec.blocks))
        self.queries = nn.Parameter(torch.empty(spec.context_tokens, spec.d_model))
        self.pool = Attention(spec)
        self.feed_forward = FeedForward(spec)
        self.final_norm = nn.Parameter(torch.ones(spec.d_model))

    def forward(self, features: FeatureTensors) -> UserContext:
        assert features.non_sequence is not None
        tokens = features.non_sequence
        batch = len(tokens)
        sequences = tuple(
            _with_summary(summary.expand(batch, -1, -1), sequence)
            for summary, sequence in zip(self.summaries, features.sequences, strict=True)
        )
        for block in self.blocks:
            tokens, sequences = block(tokens, sequences)
        memory = torch.cat([tokens, *(sequence.states for sequence in sequences)], dim=1)
        mask = torch.cat([_all_true(tokens), *(sequence.mask for sequence in sequences)], dim=1)
        context = self.pool(self.queries.expand(batch, -1, -1), memory, mask)
        context = self.feed_forward(context)
        context = rms_norm(context, self.final_norm, self.spec.norm_eps)
        return UserContext(context, _all_true(context))


class InterFormerBlock(nn.Module):
    """One exchange between X and the sequences, which are [B, m + T, d]: summaries, then events.

    u     = gate_out(attend(queries, X))       what the user's other inputs say, [m, d]
    E, S  = sequences.i: attend within [S_i + u; E_i], then a feed-forward whose units u scales
    X     = attend(X, [X; gate_in(S_1); gate_in(S_2); ...]), then a feed-forward

    Summary tokens are always keys, so attention within an empty sequence is no special case.
    """

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
        self, tokens: Tensor, sequences: tuple[SequenceTensors, ...]
    ) -> tuple[Tensor, tuple[SequenceTensors, ...]]:
        """tokens [B, N, d]"""
        queries = self.queries.expand(len(tokens), -1, -1)
        user = self.gate_out(self.summarise(queries, tokens))
        mean_user = user.mean(dim=1)
        sequences = tuple(
            layer(sequence, user, mean_user)
            for layer, sequence in zip(self.sequences, sequences, strict=True)
        )
        summaries = [sequence.states[:, : len(self.queries)] for sequence in sequences]
        gated = [self.gate_in(summary) for summary in summaries]
        tokens = self.interact(tokens, torch.cat([tokens, *gated], dim=1))
        return self.feed_forward(tokens), sequences


class SequenceLayer(nn.Module):
    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.attention = Attention(spec)
        self.feed_forward = PersonalFeedForward(spec)

    def forward(
        self, sequence: SequenceTensors, user: Tensor, mean_user: Tensor
    ) -> SequenceTensors:
        """user [B, m, d], which the summary tokens receive; mean_user [B, d]"""
        openings = self.feed_forward.openings(mean_user)
        summary = sequence.states[:, : user.shape[1]] + user
        states = torch.cat([summary, sequence.states[:, user.shape[1] :]], dim=1)
        states = self.attention(states, states, sequence.mask)
        return SequenceTensors(self.feed_forward(states, openings), sequence.mask)


class Attention(nn.Module):
    """x + W_out softmax(q k / sqrt(d_head)) v, with q of norm(x), and k and v of norm(memory)."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.heads, self.eps = spec.heads, spec.norm_eps
        self.scale = (spec.d_model // spec.heads) ** -0.5
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.q = nn.Parameter(torch.empty(spec.d_model, spec.d_model))
        self.kv = nn.Parameter(torch.empty(2 * spec.d_model, spec.d_model))
        self.out = nn.Parameter(torch.empty(spec.d_model, spec.d_model))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, Q, d], memory [B, K, d], mask bool [B, K] with a True key for each request"""
        normed = rms_norm(x, self.norm, self.eps)
        normed_memory = normed if memory is x else rms_norm(memory, self.norm, self.eps)
        keys, values = linear(normed_memory, self.kv).chunk(2, dim=-1)
        asked = TokenQueries(linear(normed, self.q), keys, values, self.heads, self.scale, mask)
        added: Tensor = self.dropout(linear(encoder_attention_reference(asked), self.out))
        return x + added


class Gate(nn.Module):
    """x * sigmoid(W norm(x)): the part of a summary that passes."""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.weight = nn.Parameter(torch.empty(spec.d_model, spec.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """[B, m, d] -> [B, m, d]"""
        return gate(x, linear(rms_norm(x, self.norm, self.eps), self.weight))


class FeedForward(nn.Module):
    """x + W_out (relu(W_in norm(x)) * openings)"""

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__()
        self.eps = spec.norm_eps
        self.norm = nn.Parameter(torch.ones(spec.d_model))
        self.ffn_in = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))
        self.ffn_out = nn.Parameter(torch.empty(spec.d_model, spec.d_ff))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, openings: Tensor | None = None) -> Tensor:
        """x [B, T, d], openings [B, 1, d_ff]; without them, 1"""
        hidden = torch.relu(linear(rms_norm(x, self.norm, self.eps), self.ffn_in))
        if openings is not None:
            hidden = hidden * openings
        added: Tensor = self.dropout(linear(hidden, self.ffn_out))
        return x + added


class PersonalFeedForward(FeedForward):
    """One user vector opens the hidden units of all x: the same event weighs differently per user.

    openings = 2 sigmoid(W_personal norm(user)), which is 1 where the user vector is 0.
    """

    def __init__(self, spec: InterFormerSpec) -> None:
        super().__init__(spec)
        self.personal_norm = nn.Parameter(torch.ones(spec.d_model))
        self.personal = nn.Parameter(torch.empty(spec.d_ff, spec.d_model))

    def openings(self, user: Tensor) -> Tensor:
        """[B, d] -> [B, 1, d_ff]"""
        product = linear(rms_norm(user, self.personal_norm, self.eps), self.personal)
        return (2.0 * sigmoid(product))[:, None, :]


def _with_summary(summary: Tensor, sequence: SequenceTensors) -> SequenceTensors:
    """Put summary tokens [B, m, d], which are never masked, before a sequence's events."""
    return SequenceTensors(
        torch.cat([summary, sequence.states], dim=1),
        torch.cat([_all_true(summary), sequence.mask], dim=1),
    )


def _all_true(states: Tensor) -> Tensor:
    return states.new_ones(states.shape[:2], dtype=torch.bool)
