"""The features stage as a GPU wants it: the function of `grace.model.definition.features`, in a
few launches.

A table holds all tables of a kind, and the host has made every id the number of a row
(`grace.model.engine.feature_lookups`), so that all inputs of a kind are one look-up, and all
sequences another.
Sums and means are accumulated in float32 and rounded once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from grace.configs.errors import ConfigError
from grace.kernels.row_stable import linear
from grace.model.definition.feature_tables import (
    BagTable,
    CategoricalTable,
    DenseTable,
    SequenceTable,
)
from grace.model.definition.features import InterFormerFeatures, T5Features
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.model import Model
from grace.model.engine.feature_lookups import FeatureLookups, event_rows_of

_MOST_ROWS = 1 << 31

# torch.embedding_bag's numbers for what functional.embedding_bag names. The latter checks in Python
# what holds here, and makes the begins of bags that are all of one size again each time.
_SUM, _MEAN = 0, 1


class FastFeatures:
    """Takes copies of the tables, in `dtype`, where the model is. On a device that has no room for
    both, drop the model's own before anything else is loaded."""

    @torch.inference_mode()
    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        features = model.features
        if isinstance(features, T5Features):
            self._places: tuple[slice, ...] = (slice(0, features.context_tokens),)
            self._events = _together([features.embed, _zeros(features.embed)], dtype)
            self._single: _SingleInputs | None = None
        else:
            layout, zeros = event_rows_of(model.spec)
            self._places = tuple(sequence.places for sequence in layout)
            tables = [*_event_tables(features), _zeros(features.tokens)]
            self._events = _together(tables, dtype)
            assert len(self._events) == zeros + 1
            self._single = _SingleInputs(features, dtype)

        self._event_begins: dict[int, Tensor] = {}  # by the number of places in a batch

    @torch.inference_mode()
    def compute(self, lookups: FeatureLookups) -> FeatureTensors:
        return FeatureTensors(
            None if self._single is None else self._single.tokens(lookups),
            self._sequences(lookups.events),
        )

    def _sequences(self, events: Tensor) -> tuple[SequenceTensors, ...]:
        """events int32 [B, places, ids]"""
        if not self._places:
            return ()
        batch, places, ids = events.shape
        begins = self._event_begins.get(batch * places)
        if begins is None:
            begins = torch.arange(0, events.numel(), ids, dtype=torch.int32, device=events.device)
            self._event_begins[batch * places] = begins
        states = _sums(self._events, events.view(-1), begins).view(batch, places, -1)
        mask = events[:, :, 0] != len(self._events) - 1
        lengths = [at.stop - at.start for at in self._places]
        return tuple(
            SequenceTensors(own, there)
            for own, there in zip(
                states.split_with_sizes(lengths, 1), mask.split_with_sizes(lengths, 1), strict=True
            )
        )


class _SingleInputs:
    """Those that are no sequences, to tokens."""

    def __init__(self, features: InterFormerFeatures, dtype: torch.dtype) -> None:
        self._tokens = features.tokens.to(dtype, copy=True)
        project = features.project
        self._project = None if project is None else project.to(dtype, copy=True)
        tables = list(features.tables.values())
        dense = [table for table in tables if isinstance(table, DenseTable)]
        categorical = [table.embed for table in tables if isinstance(table, CategoricalTable)]
        bags = [table.embed for table in tables if isinstance(table, BagTable)]
        self._dense: tuple[Tensor, Tensor] | None = None  # the inputs' weights as blocks, biases
        if dense:
            weight: Tensor = torch.block_diag(*(x.weight for x in dense))  # type: ignore[no-untyped-call]
            self._dense = weight.to(dtype), torch.cat([table.bias for table in dense]).to(dtype)
        self._categorical = _together(categorical, dtype) if categorical else None
        self._bags = _together(bags, dtype) if bags else None

    def tokens(self, lookups: FeatureLookups) -> Tensor:
        """-> [B, tokens, d]"""
        batch = len(lookups.events)
        if self._project is None:
            return self._tokens.expand(batch, -1, -1)
        vectors = []
        if self._dense is not None:
            weight, bias = self._dense
            vectors.append(linear(lookups.dense.to(weight.dtype), weight) + bias)
        if self._categorical is not None:
            vectors.append(functional.embedding(lookups.categorical, self._categorical).flatten(1))
        if self._bags is not None:
            means = torch.embedding_bag(
                *(self._bags, lookups.bag_rows, lookups.bag_offsets),
                mode=_MEAN,
                include_last_offset=True,
            )[0]
            vectors.append(means.view(batch, -1))
        projected = linear(torch.cat(vectors, dim=1), self._project)
        return projected.view(batch, *self._tokens.shape) + self._tokens


def _event_tables(features: InterFormerFeatures) -> list[Tensor]:
    """As `event_rows_of` numbers their rows."""
    found: list[Tensor] = []
    for table in features.tables.values():
        if isinstance(table, SequenceTable):
            found += [table.embed.flatten(0, 1), table.embed_age, table.embed_position]
            found += [table.get_parameter(name) for name in table.sides]
    return found


def _together(tables: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """One behind the other, cast one by one: the largest are gigabytes."""
    rows = sum(map(len, tables))
    if rows >= _MOST_ROWS:
        raise ConfigError(
            f"inputs: tables of one kind have {rows} rows together, a GPU's features stage numbers "
            f"at most {_MOST_ROWS - 1}; take a model of smaller tables, or use device cpu"
        )
    whole = tables[0].new_empty((rows, tables[0].shape[1]), dtype=dtype)
    begin = 0
    for table in tables:
        whole[begin : begin + len(table)] = table
        begin += len(table)
    return whole


def _sums(table: Tensor, rows: Tensor, begins: Tensor) -> Tensor:
    """Of the table's rows in each bag."""
    return torch.embedding_bag(table, rows, begins, mode=_SUM)[0]


def _zeros(table: Tensor) -> Tensor:
    """A row for what is not there."""
    return table.new_zeros((1, table.shape[1]))
