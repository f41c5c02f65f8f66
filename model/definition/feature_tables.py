"""The embeddings of each kind of input of an InterFormer model, with w = bag_dim, d = d_model:

dense_<name>        weight [w, size], bias [w]
categorical_<name>  embed [cardinality, w]
bag_<name>          embed [hash_rows, w]
sequence_<name>     embed [L, V, d]                 the tokens of an event's SID, by position
                    embed_age [AGE_BUCKETS, d]
                    embed_position [max_length, d]  0 is the newest event
                    embed_side_<side> [cardinality + 1, d]   the last row: not given
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace.kernels.row_stable import linear
from grace.model.definition.inputs import AGE_BUCKETS, JaggedIds, SequenceEvents, SequenceTensors
from grace.model.definition.spec import BagInput, CategoricalInput, DenseInput, SequenceInput


class DenseTable(nn.Module):
    """W sign(x) log(1 + |x|) + b: numbers of every magnitude stay distinct and small."""

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
    """An event becomes the sum of the embeddings of its tokens, age, position and side ids."""

    def __init__(self, spec: SequenceInput, vocab_sizes: tuple[int, ...], d_model: int) -> None:
        super().__init__()
        self.max_length = spec.max_length
        self.sides = tuple(f"embed_side_{name}" for name in spec.side)
        self.embed = nn.Parameter(torch.empty(len(vocab_sizes), max(vocab_sizes), d_model))
        self.embed_age = nn.Parameter(torch.empty(AGE_BUCKETS, d_model))
        self.embed_position = nn.Parameter(torch.empty(spec.max_length, d_model))
        for name, cardinality in zip(self.sides, spec.side.values(), strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(cardinality + 1, d_model)))

    def forward(self, events: SequenceEvents) -> SequenceTensors:
        rows, places = events.rows_and_places()
        counts = events.offsets.diff()
        states = self.embed_age[events.age_buckets]
        states = states + self.embed_position[counts[rows] - 1 - places]
        for position, table in enumerate(self.embed):
            states = states + table[events.sids[:, position]]
        for name, ids in zip(self.sides, events.side, strict=True):
            states = states + self.get_parameter(name)[ids]
        spread = states.new_zeros((len(counts), self.max_length, states.shape[1]))
        spread[rows, places] = states
        mask = torch.arange(self.max_length, device=counts.device) < counts[:, None]
        return SequenceTensors(spread, mask)
