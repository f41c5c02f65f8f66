"""The table of the features stage's operations, and their plain torch bodies for any device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.checks import require_tensor, sizes_of

Sequences = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, slots=True)
class SingleTables:
    """The weights of the inputs that are not sequences, of one type; each makes w numbers.

    A kind without inputs has a table without rows.
    """

    dense_weight: Tensor  # [dense * w, numbers]: every input's weight is a block of the diagonal
    dense_bias: Tensor  # [dense * w]
    categorical: Tensor  # [rows, w]: all tables one after another
    bags: Tensor  # [rows, w]


@dataclass(frozen=True, slots=True)
class SingleInputs:
    """The inputs of B requests that are not sequences, as `FeatureLookups` holds them."""

    numbers: Tensor  # float32 [B, numbers]
    categorical: Tensor  # int32 [B, inputs]: rows of the table
    bag_offsets: Tensor  # int32 [B * bags + 1]
    bag_rows: Tensor  # int32 [n]: rows of the table; those after the last offset mean nothing
    # int64 [4], their addresses, if a recorded launch is to find each batch's in turn: then these
    # tensors only give the shapes
    at: Tensor | None = None


@dataclass(frozen=True, slots=True)
class FeatureOps:
    """One implementation of each operation; its `..._reference` says what it computes.

    Each returns a function that the caller may call any number of times. It computes from what the
    arguments' memory holds at that moment. Its results may share memory, and it may hold only
    addresses, so the caller keeps the arguments.

    `sum_events` may also get the address of `events`, int64 [1], as `SingleInputs.at` says.
    """

    sum_events: Callable[..., Callable[[], Sequences]]
    join_inputs: Callable[[SingleTables, SingleInputs], Callable[[], Tensor]]


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


def join_inputs_reference(tables: SingleTables, inputs: SingleInputs) -> Tensor:
    """Return each request's inputs side by side: dense, categorical, then bags.

    A dense input is W x + b, a categorical one its row, a bag its mean row, or zeros if it is
    empty. Each is computed in float32 and rounded once.   [B, inputs * w] in the tables' type
    """
    requests, _ = check_join_inputs(tables, inputs)
    weight, bias = tables.dense_weight.float(), tables.dense_bias.float()
    dense = functional.linear(inputs.numbers, weight, bias)
    categorical = functional.embedding(inputs.categorical, tables.categorical.float())
    bags = functional.embedding_bag(
        inputs.bag_rows[: inputs.bag_offsets[-1]],
        tables.bags.float(),
        inputs.bag_offsets,
        mode="mean",
        include_last_offset=True,
    )
    parts = [dense, categorical.flatten(1), bags.view(requests, -1)]
    return torch.cat(parts, dim=1).to(tables.bags.dtype)


def check_sum_events(table: Tensor, events: Tensor, lengths: Sequence[int]) -> None:
    sizes_of("table", table, "rows d")
    batch, _, ids = sizes_of("events", events, "requests places ids")
    require_tensor("events", events, torch.int32, requests=batch, places=sum(lengths), ids=ids)


def check_join_inputs(tables: SingleTables, inputs: SingleInputs) -> tuple[int, int]:
    """Return the number of requests, and that of each one's inputs."""
    width = sizes_of("tables.categorical", tables.categorical, "rows w")[1]
    requests, numbers = sizes_of("numbers", inputs.numbers, "requests numbers", torch.float32)
    ids = sizes_of("categorical", inputs.categorical, "requests inputs")[1]
    dense = len(tables.dense_bias)
    require_tensor("dense_weight", tables.dense_weight, w=dense, numbers=numbers)
    require_tensor("bags", tables.bags, rows=len(tables.bags), w=width)
    require_tensor("categorical", inputs.categorical, torch.int32, requests=requests, inputs=ids)
    require_tensor("bag_rows", inputs.bag_rows, torch.int32, n=inputs.bag_rows.numel())
    bags, odd = divmod(inputs.bag_offsets.numel() - 1, max(1, requests))
    if odd or dense % width:
        raise ValueError(
            f"{inputs.bag_offsets.numel()} bag_offsets and {dense} biases are not those of "
            f"{requests} requests and inputs of width {width}"
        )
    require_tensor("bag_offsets", inputs.bag_offsets, torch.int32, ends=requests * bags + 1)
    return requests, dense // width + ids + bags


PLAIN_FEATURES = FeatureOps(
    sum_events=lambda *given: partial(sum_events_reference, *given),
    join_inputs=lambda *given: partial(join_inputs_reference, *given),
)
