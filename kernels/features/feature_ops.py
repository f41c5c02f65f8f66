"""The table of the features stage's operations, and their plain torch bodies for any device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.checks import require_tensor

Sequences = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True)
class FeatureOps:
    """One implementation of each operation; its `..._reference` says what it computes."""

    sum_events: Callable[[Tensor, Tensor, Sequence[int]], Sequences]  # (table, events, lengths)
    mean_bags: Callable[[Tensor, Tensor, Tensor], Tensor]  # (table, rows, offsets)


def sum_events_reference(table: Tensor, events: Tensor, lengths: Sequence[int]) -> Sequences:
    """Return the states and the mask of each sequence. A state is a sum, made in float32.

    table    [rows, d]               the last row is zeros
    events   int32 [B, places, ids]  rows of the table; if the first is the last row, no event is
                                     there
    lengths  of the sequences, whose places follow each other
    -> ([B, length, d] in the table's type, bool [B, length]) of each sequence
    """
    check_sum_events(table, events, lengths)
    sums = table[events.long()].float().sum(dim=2).to(table.dtype)
    mask = events[:, :, 0] != len(table) - 1
    sizes = list(lengths)
    parts = zip(sums.split_with_sizes(sizes, 1), mask.split_with_sizes(sizes, 1), strict=True)
    return tuple(parts)


def mean_bags_reference(table: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """Return the mean row of each bag, made in float32; zeros for an empty bag.

    table [all, w], rows int32 [n], offsets int32 [bags + 1] -> [bags, w] in the table's type
    """
    check_mean_bags(table, rows, offsets)
    return functional.embedding_bag(
        rows, table.float(), offsets, mode="mean", include_last_offset=True
    ).to(table.dtype)


def check_sum_events(table: Tensor, events: Tensor, lengths: Sequence[int]) -> None:
    if table.dim() != 2 or events.dim() != 3:
        shapes = f"{list(table.shape)} and {list(events.shape)}"
        raise ValueError(f"table and events must be [rows, d], [B, places, ids], got {shapes}")
    batch, _, ids = events.shape
    require_tensor("events", events, torch.int32, requests=batch, places=sum(lengths), ids=ids)


def check_mean_bags(table: Tensor, rows: Tensor, offsets: Tensor) -> None:
    if table.dim() != 2:
        raise ValueError(f"table must be [rows, w], got {list(table.shape)}")
    require_tensor("rows", rows, torch.int32, n=rows.numel())
    require_tensor("offsets", offsets, torch.int32, ends=offsets.numel())


PLAIN_FEATURES = FeatureOps(sum_events=sum_events_reference, mean_bags=mean_bags_reference)
