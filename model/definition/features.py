"""The features stage: it turns a batch's inputs into the vectors that an encoder starts from.

T5Features:
    embed    [num_tokens, d_model]

InterFormerFeatures, with N inputs that are not sequences, w = bag_dim and d = d_model:
    project  [non_sequence_tokens * d, N * w]   if N > 0
    tokens   [non_sequence_tokens, d]           added to the projection
    tables.dense_<name>.         weight [w, size], bias [w]
    tables.categorical_<name>.   embed [cardinality, w]
    tables.bag_<name>.           embed [hash_rows, w]
    tables.sequence_<name>.      embed [L, V, d]                 an event's tokens, by position
                                 embed_age [AGE_BUCKETS, d]
                                 embed_position [max_length, d]  0 is the newest event
                                 embed_side_<side> [cardinality + 1, d]   the last row: not given
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace.kernels.row_stable import linear
from grace.model.definition.inputs import (
    AGE_BUCKETS,
    FeatureTensors,
    JaggedIds,
    ModelInputs,
    Prompts,
    SequenceEvents,
    SequenceTensors,
)
from grace.model.definition.spec import BagInput, CategoricalInput, DenseInput, SequenceInput
from grace.model.definition.t5_spec import EncoderDecoderSpec


class T5Features(nn.Module):
    """Prefix tokens, the history's tokens, then end of sequence. All padding comes last."""

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        assert spec.encoder.t5 is not None
        self.spec = spec.encoder.t5
        self.max_length = spec.sequences[self.spec.history].max_length
        self.context_tokens = spec.context_tokens
        self.embed = nn.Parameter(torch.empty(self.spec.num_tokens, self.spec.d_model))
        self.dropout = nn.Dropout(0.0)

    def forward(self, inputs: ModelInputs) -> FeatureTensors:
        tokens, mask = self._tokens(inputs)
        states = self.dropout(functional.embedding(tokens, self.embed))
        states = states.masked_fill(~mask[:, :, None], 0.0)
        return FeatureTensors(non_sequence=None, sequences=(SequenceTensors(states, mask),))

    def _tokens(self, inputs: ModelInputs) -> tuple[Tensor, Tensor]:
        """Return tokens int64 [B, T_ctx] and their mask, bool [B, T_ctx]."""
        (events,) = inputs.sequences
        prefix, eos = self.spec.prefix_tokens, self.spec.eos_token
        sid_length = len(self.spec.token_offsets)
        left_out = self.max_length - (events.width or self.max_length)
        width = self.context_tokens - left_out * sid_length
        tokens = events.sids.new_zeros((inputs.batch, width))
        for place, token in enumerate(prefix):
            tokens[:, place] = token
        rows, places = events.rows_and_places()
        for position, offset in enumerate(self.spec.token_offsets):
            column = len(prefix) + places * sid_length + position
            tokens[rows, column] = events.sids[:, position] + offset
        lengths = len(prefix) + events.offsets.diff() * sid_length
        places = torch.arange(width, device=tokens.device)
        if eos is not None:
            tokens = torch.where(places == lengths[:, None], eos, tokens)
            lengths = lengths + 1
        return tokens, places < lengths[:, None]


class PromptFeatures(nn.Module):
    """The prompts of a causal model, whose decoder embeds their tokens itself."""

    def forward(self, inputs: ModelInputs) -> Prompts:
        (prompts,) = inputs.bags
        return Prompts(prompts.offsets, prompts.values)


class InterFormerFeatures(nn.Module):
    """Non-sequence inputs become a fixed number of tokens, and every event one vector.

    Look-ups and sums run over jagged values, so padding costs nothing. The product's shape depends
    on the batch size alone, so a request's bits do not depend on its neighbours.
    """

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        encoder = spec.encoder.interformer
        assert encoder is not None
        width, tokens = encoder.bag_dim, encoder.non_sequence_tokens
        single: dict[str, nn.Module] = {
            **{f"dense_{n}": DenseTable(x, width) for n, x in spec.dense.items()},
            **{f"categorical_{n}": CategoricalTable(x, width) for n, x in spec.categorical.items()},
            **{f"bag_{n}": BagTable(x, width) for n, x in spec.bags.items()},
        }
        sequences = {
            f"sequence_{name}": SequenceTable(sequence, spec.vocab_sizes, encoder.d_model)
            for name, sequence in spec.sequences.items()
        }
        self.tables = nn.ModuleDict(single | sequences)
        shape = tokens * encoder.d_model, len(single) * width
        self.project = nn.Parameter(torch.empty(shape)) if single else None
        self.tokens = nn.Parameter(torch.empty(tokens, encoder.d_model))

    def forward(self, inputs: ModelInputs) -> FeatureTensors:
        tables = list(self.tables.values())
        single = (*inputs.dense, *inputs.categorical, *inputs.bags)
        vectors = [table(value) for table, value in zip(tables, single, strict=False)]
        sequences = zip(tables[len(single) :], inputs.sequences, strict=True)
        return FeatureTensors(
            non_sequence=self._non_sequence(vectors, inputs.batch),
            sequences=tuple(table(events) for table, events in sequences),
        )

    def _non_sequence(self, vectors: list[Tensor], batch: int) -> Tensor:
        """[B, w] of each input -> [B, tokens, d]"""
        if self.project is None:
            return self.tokens.expand(batch, -1, -1)
        projected = linear(torch.cat(vectors, dim=1), self.project)
        return projected.view(batch, *self.tokens.shape) + self.tokens


class DenseTable(nn.Module):
    """The function W sign(x) log(1 + |x|) + b: numbers of every size stay distinct and small."""

    def __init__(self, spec: DenseInput, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, spec.size))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, numbers: Tensor) -> Tensor:
        """[B, size] -> [B, w]"""
        squashed = numbers.sign() * numbers.abs().log1p()
        return linear(squashed.to(self.weight.dtype), self.weight) + self.bias


class CategoricalTable(nn.Module):
    def __init__(self, spec: CategoricalInput, width: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(spec.cardinality, width))

    def forward(self, ids: Tensor) -> Tensor:
        """[B] -> [B, w]"""
        return functional.embedding(ids, self.embed)


class BagTable(nn.Module):
    """The mean of the embeddings of a request's ids; zeros if it has none."""

    def __init__(self, spec: BagInput, width: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(spec.hash_rows, width))

    def forward(self, ids: JaggedIds) -> Tensor:
        """Return [B, w]."""
        return functional.embedding_bag(
            ids.values, self.embed, ids.offsets, mode="mean", include_last_offset=True
        )


class SequenceTable(nn.Module):
    """The events of a sequence: each is the sum of its embeddings of tokens, age, place, sides."""

    def __init__(self, spec: SequenceInput, vocab_sizes: tuple[int, ...], d_model: int) -> None:
        super().__init__()
        self.max_length = spec.max_length
        self.sides = tuple(f"embed_side_{name}" for name in spec.side)
        self.embed = nn.Parameter(torch.empty(len(vocab_sizes), max(vocab_sizes), d_model))
        self.embed_age = nn.Parameter(torch.empty(AGE_BUCKETS, d_model))
        self.embed_position = nn.Parameter(torch.empty(spec.max_length, d_model))
        for name, cardinality in zip(self.sides, spec.side.values(), strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(cardinality + 1, d_model)))
        self.dropout = nn.Dropout(0.0)

    def forward(self, events: SequenceEvents) -> SequenceTensors:
        rows, places = events.rows_and_places()
        counts = events.offsets.diff()
        states = self.embed_age[events.age_buckets]
        states = states + self.embed_position[(counts[rows] - 1 - places).clamp(min=0)]
        for position, table in enumerate(self.embed):
            states = states + table[events.sids[:, position]]
        for name, ids in zip(self.sides, events.side, strict=True):
            states = states + self.get_parameter(name)[ids]
        width = events.width or self.max_length
        spread = states.new_zeros((len(counts), width, states.shape[1]))
        spread[rows, places] = self.dropout(states)
        mask = torch.arange(width, device=counts.device) < counts[:, None]
        return SequenceTensors(spread, mask)
