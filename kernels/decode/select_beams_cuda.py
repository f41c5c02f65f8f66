"""Selection on a GPU: native/cuda/select_beams.cu, which says what makes it quick."""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from grace.kernels.checks import address, current_stream, fields, number_kind, require_contiguous
from grace.kernels.decode.select_beams import Choice
from grace.kernels.decode.tensors import Beams
from grace.native.loader import declare_cuda

_MOST_BEAMS = 65536
_KEYS_IN_BLOCK = 4096  # that are ranked exactly in a block's memory
_GROUPS = 32


class _Selection(ctypes.Structure):
    """The layout of native/cuda/selection.cuh."""

    _fields_ = (
        *fields(c_void_p, "logits row_scale log_sums scores offsets counts tokens nodes"),
        *fields(c_void_p, "normalisers group_best keys"),
        *fields(c_void_p, "kept_parents kept_tokens kept_nodes kept_scores corrupt"),
        *fields(c_int64, "requests beams columns logit_kind k capacity ordered"),
    )


prepare_selection = declare_cuda("grace_cuda_prepare_selection()")
"""Prepare the current GPU, once, before its first selection and outside of any capture."""
_select_beams = declare_cuda("grace_cuda_select_beams(pointer, int64, pointer)")


def select_beams_cuda(given: Choice) -> Beams:
    """Compute what `select_beams_reference` does, for up to 65536 beams of 65536 candidates."""
    requests, beams = given.check()
    logits, candidates, k = given.logits, given.candidates, given.k
    device = logits.device
    require_contiguous(logits=logits)
    if beams > _MOST_BEAMS:
        raise ValueError(f"a GPU selects from at most {_MOST_BEAMS} beams, got {beams}")

    def place(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    capacity = max(_KEYS_IN_BLOCK, 2 * k)
    keys = place(torch.int64, requests, 2, capacity) if capacity > _KEYS_IN_BLOCK else None
    normalisers = place(torch.float32, requests * beams, 2)
    group_best = place(torch.float32, requests * beams, _GROUPS)
    kept = Beams(
        parents=place(torch.int32, requests, k),
        tokens=place(torch.int32, requests, k),
        nodes=place(torch.int32, requests, k),
        scores=place(torch.float32, requests, k),
        corrupt=place(torch.bool, requests),
    )
    selection = _Selection(
        logits=address("logits", logits, device, logits.dtype),
        row_scale=address("row_scale", given.row_scale, device, torch.float32),
        log_sums=address("log_sums", given.log_sums, device, torch.float32),
        scores=address("scores", given.scores, device, torch.float32),
        offsets=address("candidates.offsets", candidates.offsets, device, torch.int32),
        counts=address("candidates.counts", candidates.counts, device, torch.int32),
        tokens=address("candidates.tokens", candidates.tokens, device, torch.int32),
        nodes=address("candidates.nodes", candidates.nodes, device, torch.int32),
        normalisers=normalisers.data_ptr(),
        group_best=group_best.data_ptr(),
        keys=0 if keys is None else keys.data_ptr(),
        kept_parents=kept.parents.data_ptr(),
        kept_tokens=kept.tokens.data_ptr(),
        kept_nodes=kept.nodes.data_ptr(),
        kept_scores=kept.scores.data_ptr(),
        corrupt=kept.corrupt.data_ptr(),
        requests=requests,
        beams=beams,
        columns=logits.shape[1],
        logit_kind=number_kind("logits", logits.dtype),
        k=k,
        capacity=capacity,
        ordered=given.ordered,
    )
    if requests:
        _select_beams(current_stream(device), ctypes.sizeof(selection), ctypes.byref(selection))
    return kept
