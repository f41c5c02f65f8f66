"""Events to predict, as batches of model inputs: what their users did before."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.errors import ConfigError, InputError
from grace.model.definition.inputs import ModelInputs, SequenceEvents, age_buckets
from grace.model.definition.spec import ModelSpec, SequenceInput
from grace.model.train.interactions import Interactions

__all__ = ["HistoryBatches", "history_input"]

Int64 = npt.NDArray[np.int64]


def history_input(spec: ModelSpec) -> SequenceInput:
    """The one input of a model that a log of interactions can train."""
    (name, history), *others = spec.inputs.items()
    if others or not isinstance(history, SequenceInput):
        strange = name if not isinstance(history, SequenceInput) else others[0][0]
        raise ConfigError(
            f"model.inputs.{strange}: an interaction log has one sequence of events and nothing "
            "else; remove the input"
        )
    return history


@dataclass(frozen=True, slots=True)
class HistoryBatches:
    """The events before given ones, at most `max_length` of them."""

    log: Interactions
    history: SequenceInput

    def __post_init__(self) -> None:
        for name, cardinality in self.history.side.items():
            low, high = int(self.log.side[name].min()), int(self.log.side[name].max())
            if low < 0 or high >= cardinality:
                raise InputError(
                    f"the log's column {name!r} has ids {low} to {high}, but the model's side "
                    f"input is declared for 0 to {cardinality - 1}; declare {high + 1} or more"
                )

    def inputs(self, events: Int64) -> ModelInputs:
        """What was known before each of `events`; nothing before a user's first.   int64 [B]"""
        log = self.log
        user_start = log.offsets[np.searchsorted(log.offsets, events, side="right") - 1]
        begin = np.maximum(user_start, events - self.history.max_length)
        counts = events - begin
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(begin - offsets[:-1], counts) + np.arange(offsets[-1])
        newest = np.repeat(log.times_ms[events - 1], counts)
        return ModelInputs(
            batch=len(events),
            dense=(),
            categorical=(),
            bags=(),
            sequences=(
                SequenceEvents(
                    offsets=torch.from_numpy(offsets),
                    sids=torch.from_numpy(log.sids[rows]),
                    age_buckets=torch.from_numpy(age_buckets(newest - log.times_ms[rows])),
                    side=tuple(
                        torch.from_numpy(log.side[name][rows]) for name in self.history.side
                    ),
                ),
            ),
        )

    def targets(self, events: Int64) -> Tensor:
        """int64 [B, L]"""
        return torch.from_numpy(self.log.sids[events])
