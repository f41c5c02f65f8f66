"""The features of a batch, from requests to arrays and from arrays to an encoder's input.

A CPU runs the definition, `grace.model.definition.features`. A GPU computes the same in three
launches, from the row numbers of `feature_reader`: one look-up reads all inputs that are not
sequences, one product makes their tokens, and another look-up reads all sequences. Sums and means
are accumulated in float32 and rounded once. A graph of generation begins with these launches: then
this stage only says where a batch's row numbers are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from grace.kernels import load_feature_ops
from grace.kernels.features.feature_ops import FeatureOps, SingleInputs, SingleTables
from grace.kernels.features.feature_ops_cuda import addresses_of
from grace.kernels.row_stable import linear
from grace.model.definition.features import (
    BagTable,
    CategoricalTable,
    DenseTable,
    InterFormerFeatures,
    SequenceTable,
    T5Features,
)
from grace.model.definition.inputs import FeatureTensors, Prompts, SequenceTensors, map_tensors
from grace.model.definition.model import AnyModel, CausalModel, Model
from grace.model.engine import feature_reader
from grace.model.engine.device_copy import Staging


@dataclass(frozen=True, slots=True, eq=False)
class PlacedLookups:
    """A batch on a GPU, whose features a graph of generation computes."""

    stage: "FastStage"
    lookups: feature_reader.FeatureLookups
    # int64 [5]: the addresses of its row numbers; a graph reads those of each batch in turn
    at: Tensor
    compute: Callable[[], FeatureTensors]  # makes the features of the batch to which `at` points

    @property
    def batch(self) -> int:
        return len(self.lookups.events)


@dataclass(frozen=True, slots=True)
class PlacedPrompts(Prompts):
    """A batch's prompts on a GPU, and their number of tokens, known without waiting for it."""

    total: int


Features: TypeAlias = FeatureTensors | Prompts | PlacedLookups
BatchFeatures: TypeAlias = tuple[feature_reader.ReadFeatures, Callable[[], Features]]
"""A batch as it was read, and a function that makes its features. That runs on the device's current
stream, in memory of the batch's staging."""


def at_once(features: Features) -> FeatureTensors:
    """Return an encoder's features, computed now if they were not yet."""
    found = features.compute() if isinstance(features, PlacedLookups) else features
    assert isinstance(found, FeatureTensors)
    return found


class PlainStage:
    def __init__(self, model: AnyModel) -> None:
        self._spec = model.spec
        self._features = model.features
        self._reader = feature_reader.FeatureReader(model.spec)

    def read(self, messages: Sequence[bytes], size: int, staging: Staging) -> BatchFeatures:
        """Read a batch of messages, and send it to the device if there is one."""
        read = self._reader.read(messages, size, staging.arrays)
        return read, partial(self._compute, read.inputs)

    @torch.inference_mode()
    def _compute(self, lookups: feature_reader.FeatureLookups) -> Features:
        features: Features = self._features(feature_reader.model_inputs_of(self._spec, lookups))
        return features


class FastStage:
    """The features of a GPU, from tables that it copies to the model's device in `dtype`.

    If the device has no room for both, drop the model's tables before anything else is loaded.
    """

    @torch.inference_mode()
    def __init__(self, model: Model, dtype: torch.dtype, ops: FeatureOps | None = None) -> None:
        self._device = model.decoder.device
        self._reader = feature_reader.FeatureReader(model.spec)
        self._ops = ops or load_feature_ops(self._device)
        features = model.features
        self._single: _SingleInputs | None = None
        if isinstance(features, T5Features):
            self._lengths = [features.context_tokens]
            self._events = _together([features.embed, _zeros(features.embed)], dtype)
        else:
            layout, zeros = feature_reader.event_rows_of(model.spec)
            self._lengths = [rows.places.stop - rows.places.start for rows in layout]
            self._events = _together([*_event_tables(features), _zeros(features.tokens)], dtype)
            assert len(self._events) == zeros + 1
            self._single = _SingleInputs(features, dtype, self._ops)

    def read(self, messages: Sequence[bytes], size: int, staging: Staging) -> BatchFeatures:
        read = self._reader.read(messages, size, staging.arrays)
        feature_reader.squash(read.inputs.dense.numpy())
        staging.send()
        return read, staging.once(self._placed)

    def _placed(self, tensors: Sequence[Tensor]) -> Callable[[], PlacedLookups]:
        """Return what returns the features of every batch that these tensors will hold."""
        lookups = feature_reader.FeatureLookups(*tensors)

        def compute() -> FeatureTensors:
            return self._computed(lookups)()

        placed = PlacedLookups(self, lookups, addresses_of(*tensors), compute)
        return lambda: placed

    def recorded(self, batch: int) -> PlacedLookups:
        """Return an empty batch for graphs to begin with: they record its `compute`."""
        empty = self._reader.read([], batch).inputs
        lookups = map_tensors(empty, lambda tensor: tensor.to(self._device))
        at = addresses_of(*lookups.tensors())
        return PlacedLookups(self, lookups, at, self._computed(lookups, at))

    def _computed(
        self, lookups: feature_reader.FeatureLookups, at: Tensor | None = None
    ) -> Callable[[], FeatureTensors]:
        tokens = None if self._single is None else self._single.prepared(lookups, at)
        found = () if at is None else (at[4:],)
        sums = self._ops.sum_events(self._events, lookups.events, self._lengths, *found)

        def compute() -> FeatureTensors:
            sequences = tuple(SequenceTensors(*each) for each in sums())
            return FeatureTensors(None if tokens is None else tokens(), sequences)

        return compute


class PromptStage:
    """The features of a causal model on a GPU: its prompts, in the batch's memory there."""

    def __init__(self, model: CausalModel) -> None:
        self._reader = feature_reader.FeatureReader(model.spec)

    def read(self, messages: Sequence[bytes], size: int, staging: Staging) -> BatchFeatures:
        read = self._reader.read(messages, size, staging.arrays)
        _, _, offsets, tokens, _ = staging.send()
        prompts = PlacedPrompts(offsets, tokens, total=int(read.inputs.bag_offsets[-1]))
        return read, lambda: prompts


FeatureStage: TypeAlias = PlainStage | FastStage | PromptStage


def feature_stage_for(model: AnyModel, dtype: torch.dtype) -> FeatureStage:
    """Return the fastest stage for the model's device."""
    if model.decoder.device.type == "cpu":
        return PlainStage(model)
    return PromptStage(model) if isinstance(model, CausalModel) else FastStage(model, dtype)


class _SingleInputs:
    """The inputs that are not sequences, and the tokens that they become."""

    def __init__(self, features: InterFormerFeatures, dtype: torch.dtype, ops: FeatureOps) -> None:
        self._ops = ops
        self._tokens = features.tokens.to(dtype, copy=True)
        self._project: Tensor | None = None
        if features.project is None:
            return
        self._project = features.project.to(dtype, copy=True)
        tables = list(features.tables.values())
        dense = [table for table in tables if isinstance(table, DenseTable)]
        categorical = [table.embed for table in tables if isinstance(table, CategoricalTable)]
        bags = [table.embed for table in tables if isinstance(table, BagTable)]
        inputs = len(dense) + len(categorical) + len(bags)
        no_rows = features.tokens.new_empty((0, features.project.shape[1] // inputs))
        weights: list[Tensor] = [table.weight for table in dense]
        weights = weights or [features.tokens.new_empty((0, 0))]
        weight: Tensor = torch.block_diag(*weights)  # type: ignore[no-untyped-call]
        self._tables = SingleTables(
            dense_weight=weight.to(dtype),
            dense_bias=torch.cat([no_rows.flatten(), *(table.bias for table in dense)]).to(dtype),
            categorical=_together([no_rows, *categorical], dtype),
            bags=_together([no_rows, *bags], dtype),
        )

    def prepared(
        self, lookups: feature_reader.FeatureLookups, at: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """-> [B, tokens, d]"""
        tokens, project = self._tokens.expand(len(lookups.events), -1, -1), self._project
        if project is None:
            return lambda: tokens
        bias, shape = self._tokens.flatten(), tokens.shape
        own = lookups.dense, lookups.categorical, lookups.bag_offsets, lookups.bag_rows
        inputs = SingleInputs(*own, None if at is None else at[:4])
        joined = self._ops.join_inputs(self._tables, inputs)
        return lambda: linear(joined(), project, bias).view(shape)


def _event_tables(features: InterFormerFeatures) -> list[Tensor]:
    """Return the tables in the order in which `event_rows_of` numbers their rows."""
    found: list[Tensor] = []
    for table in features.tables.values():
        if isinstance(table, SequenceTable):
            found += [table.embed.flatten(0, 1), table.embed_age, table.embed_position]
            found += [table.get_parameter(name) for name in table.sides]
    return found


def _together(tables: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return one table of all rows. Tables are cast one by one: the largest are gigabytes."""
    whole = tables[0].new_empty((sum(map(len, tables)), tables[0].shape[1]), dtype=dtype)
    for part, table in zip(whole.split_with_sizes([*map(len, tables)]), tables, strict=True):
        part.copy_(table)
    return whole


def _zeros(table: Tensor) -> Tensor:
    """Return a row of zeros, which absent inputs read."""
    return table.new_zeros((1, table.shape[1]))
