"""The features stage: it turns a batch's inputs into the vectors that an encoder starts from.

T5Features:
    embed    [num_tokens, d_model]

InterFormerFeatures, with N inputs that are not sequences, w = bag_dim and d = d_model:
    tables.<kind>_<name>.   see `feature_tables`
    project  [non_sequence_tokens * d, N * w]   if N > 0
    tokens   [non_sequence_tokens, d]           added to the projection
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace.kernels.row_stable import linear
from grace.model.definition.feature_tables import (
    BagTable,
    CategoricalTable,
    DenseTable,
    SequenceTable,
)
from grace.model.definition.inputs import (
    FeatureTensors,
    ModelInputs,
    SequenceTensors,
    inputs_of_kind,
)
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)


class T5Features(nn.Module):
    """Prefix tokens, the history's tokens, then end of sequence. All padding comes last."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.encoder.t5 is not None
        self.spec = spec.encoder.t5
        self.context_tokens = spec.context_tokens
        self.embed = nn.Parameter(torch.empty(self.spec.num_tokens, self.spec.d_model))

    def forward(self, inputs: ModelInputs) -> FeatureTensors:
        tokens, mask = self._tokens(inputs)
        states = functional.embedding(tokens, self.embed)
        states = states.masked_fill(~mask[:, :, None], 0.0)
        return FeatureTensors(non_sequence=None, sequences=(SequenceTensors(states, mask),))

    def _tokens(self, inputs: ModelInputs) -> tuple[Tensor, Tensor]:
        """Return tokens int64 [B, T_ctx] and their mask, bool [B, T_ctx]."""
        (events,) = inputs.sequences
        prefix, eos = self.spec.prefix_tokens, self.spec.eos_token
        sid_length = len(self.spec.token_offsets)
        tokens = events.sids.new_zeros((inputs.batch, self.context_tokens))
        for place, token in enumerate(prefix):
            tokens[:, place] = token
        rows, places = events.rows_and_places()
        for position, offset in enumerate(self.spec.token_offsets):
            column = len(prefix) + places * sid_length + position
            tokens[rows, column] = events.sids[:, position] + offset
        lengths = len(prefix) + events.offsets.diff() * sid_length
        if eos is not None:
            tokens[torch.arange(inputs.batch, device=tokens.device), lengths] = eos
            lengths = lengths + 1
        places = torch.arange(self.context_tokens, device=tokens.device)
        return tokens, places < lengths[:, None]


class InterFormerFeatures(nn.Module):
    """Non-sequence inputs become a fixed number of tokens, and every event one vector.

    Look-ups and sums run over jagged values, so padding costs nothing. The product's shape depends
    on the batch size alone, so a request's bits do not depend on its neighbours.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        encoder = spec.encoder.interformer
        assert encoder is not None
        width, tokens = encoder.bag_dim, encoder.non_sequence_tokens
        single: dict[str, nn.Module] = {
            **{f"dense_{n}": DenseTable(x, width) for n, x in inputs_of_kind(spec, DenseInput)},
            **{
                f"categorical_{n}": CategoricalTable(x, width)
                for n, x in inputs_of_kind(spec, CategoricalInput)
            },
            **{f"bag_{n}": BagTable(x, width) for n, x in inputs_of_kind(spec, BagInput)},
        }
        sequences = {
            f"sequence_{n}": SequenceTable(x, spec.vocab_sizes, encoder.d_model)
            for n, x in inputs_of_kind(spec, SequenceInput)
        }
        self.tables = nn.ModuleDict(single | sequences)
        self.project = (
            nn.Parameter(torch.empty(tokens * encoder.d_model, len(single) * width))
            if single
            else None
        )
        self.tokens = nn.Parameter(torch.empty(tokens, encoder.d_model))

    def forward(self, inputs: ModelInputs) -> FeatureTensors:
        tables = list(self.tables.values())
        single = (*inputs.dense, *inputs.categorical, *inputs.bags)
        sequences = zip(tables[len(single) :], inputs.sequences, strict=True)
        return FeatureTensors(
            non_sequence=self._non_sequence(
                [table(value) for table, value in zip(tables, single, strict=False)], inputs.batch
            ),
            sequences=tuple(table(events) for table, events in sequences),
        )

    def _non_sequence(self, vectors: list[Tensor], batch: int) -> Tensor:
        """[B, w] of each input -> [B, tokens, d]"""
        if self.project is None:
            return self.tokens.expand(batch, -1, -1)
        projected = linear(torch.cat(vectors, dim=1), self.project)
        return projected.view(batch, *self.tokens.shape) + self.tokens
