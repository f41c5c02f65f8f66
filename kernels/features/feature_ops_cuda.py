"""The features stage's look-ups on a GPU: native/cuda/features.cu, which says what makes it quick.

Every sequence's states are contiguous, as copies of them need.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from grace.kernels.checks import address, current_stream, fields, number_kind
from grace.kernels.decode.users import on_device
from grace.kernels.features import feature_ops
from grace.native.loader import declare_cuda


class _SingleInputs(ctypes.Structure):
    """The layout of native/cuda/features.cu."""

    _fields_ = (
        *fields(c_void_p, "dense_weight dense_bias categorical_table bag_table"),
        *fields(c_void_p, "lookups joined"),
        *fields(c_int64, "requests width num_numbers num_dense num_categorical num_bags kind"),
    )


_join_inputs = declare_cuda("grace_cuda_join_inputs(pointer, int64, pointer)")
_sum_events = declare_cuda(
    "grace_cuda_sum_events(pointer, pointer, int64, pointer, int64, int64, int64, int64, int64, "
    "pointer, pointer, pointer)"
)


def sum_events_cuda(
    table: Tensor, events: Tensor, lengths: Sequence[int], at: Tensor | None = None
) -> Callable[[], feature_ops.Sequences]:
    """Prepare what `sum_events_reference` does, for up to 64 sequences."""
    feature_ops.check_sum_events(table, events, lengths)
    (batch, places, ids), (rows, d) = events.shape, table.shape
    device, dtype = table.device, table.dtype
    states = torch.empty(batch * places * d, dtype=dtype, device=device)
    mask = torch.empty(batch * places, dtype=torch.bool, device=device)
    found = addresses_of(events) if at is None else at
    address("address of events", found, device, torch.int64)
    given = (
        number_kind("table", dtype),
        address("table", table, device, dtype),
        rows - 1,
        d,
        batch,
        ids,
        len(lengths),
        (c_int32 * len(lengths))(*lengths),
        states.data_ptr(),
        mask.data_ptr(),
    )
    sizes = [batch * length for length in lengths]
    of_sequences = states.split_with_sizes([d * size for size in sizes])
    parts = zip(lengths, of_sequences, mask.split_with_sizes(sizes), strict=True)
    sums = tuple((x.view(batch, length, d), y.view(batch, length)) for length, x, y in parts)

    def run() -> feature_ops.Sequences:
        if states.numel():
            _sum_events(current_stream(device), found.data_ptr(), *given)
        return sums

    return run


def join_inputs_cuda(
    tables: feature_ops.SingleTables, inputs: feature_ops.SingleInputs
) -> Callable[[], Tensor]:
    requests, num_inputs = feature_ops.check_join_inputs(tables, inputs)
    device, dtype = tables.categorical.device, tables.categorical.dtype
    width, categorical = tables.categorical.shape[1], inputs.categorical.shape[1]
    dense = len(tables.dense_bias) // width
    joined = torch.empty((requests, num_inputs * width), dtype=dtype, device=device)
    own = inputs.numbers, inputs.categorical, inputs.bag_offsets, inputs.bag_rows
    at = addresses_of(*own) if inputs.at is None else inputs.at
    given = _SingleInputs(
        dense_weight=address("dense_weight", tables.dense_weight, device, dtype),
        dense_bias=address("dense_bias", tables.dense_bias, device, dtype),
        categorical_table=address("tables.categorical", tables.categorical, device, dtype),
        bag_table=address("bags", tables.bags, device, dtype),
        joined=joined.data_ptr(),
        requests=requests,
        width=width,
        num_numbers=inputs.numbers.shape[1],
        num_dense=dense,
        num_categorical=categorical,
        num_bags=num_inputs - dense - categorical,
        kind=number_kind("tables", dtype),
    )

    def run() -> Tensor:
        if joined.numel():
            given.lookups = address("addresses of inputs", at, device, torch.int64)
            _join_inputs(current_stream(device), ctypes.sizeof(given), ctypes.byref(given))
        return joined

    return run


def addresses_of(*tensors: Tensor) -> Tensor:
    """Return where the tensors of a batch are, on their device.   int64 [tensors]"""
    for tensor in tensors:
        kind = torch.float32 if tensor.is_floating_point() else torch.int32
        address("a tensor of inputs", tensor, tensors[0].device, kind)
    found = torch.tensor([each.data_ptr() for each in tensors])
    return on_device(found, tensors[0].device)
