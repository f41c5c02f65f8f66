"""What does not fit an operation is refused by name, in the reference and in the fast bodies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.kernels import NO_BLOCK, REFERENCE, Candidates, UserTensors, load_ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.decode.select_beams import Choice
from grace.kernels.encoder.encoder_attention import Part, TokenQueries
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER
from grace.kernels.encoder.token_product import Run, TokenProduct
from grace.kernels.features.feature_ops import PLAIN_FEATURES, SingleInputs, SingleTables
from support.decode_cases import CPU, DecodeCase, branching_case, decode_case
from support.encoder_op_cases import run_once
from support.strategies import random_schema

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_DECODER, CUDA_ENCODER, CUDA_FEATURES


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


OFFSETS = torch.tensor([0, 1, 2, 4, 4, 4, 4]).int()
BLOCKS = ints(5, 4)
BLOCKS[:, 2:] = NO_BLOCK
TABLES = SingleTables(ones(0, 4), ones(0), ones(5, 3), ones(5, 3))
INPUTS = SingleInputs(torch.zeros(2, 4), ints(2, 1), ints(5), ints(0))
NARROW = ones(4, 3, 2, 9)[..., :8]
TURNED = ones(3, 8, 5).transpose(1, 2)
ONE = torch.tensor([1])


def two_users(mode: MatcherMode) -> DecodeCase:
    rng = np.random.default_rng(6)
    return decode_case(branching_case(rng, 33, 2, random_schema(rng, (3,), 2)), mode)


UNION, EXACT = two_users(MatcherMode.UNION), two_users(MatcherMode.EXACT)

FITS: dict[str, Any] = {
    "self_attention": PagedPrefixes(ones(9, 3, 2, 3), BLOCKS, 1, ones(2, 4), 1.0),
    "cross_attention": BeamQueries(
        ones(6, 10), ones(3, 2, 7, 5), ones(3, 2, 7, 5), ones(3, 7) > 0, 1.0
    ),
    "select_beams": Choice(
        torch.zeros(6, 7), torch.zeros(2, 3), Candidates(OFFSETS, ints(4), ints(4)), 5, False
    ),
    "rearrange": {"table": ints(5, 3), "parents": ints(1, 2), "step": 1},
    "row_factors": {"x": ones(6, 4), "eps": 1e-6},
    "rms_norm": {"x": ones(4, 6), "gain": ones(6), "eps": 1e-6},
    "attention": TokenQueries(ones(2, 7, 8), ones(2, 7, 8), ones(2, 7, 8), 2, 1.0),
    "token_product": TokenProduct(ones(2, 3, 8), ones(1, 4, 8), ones(2, 5, 4), (Run(0, 0, 3),)),
    "share_user": {
        "tokens": ones(2, 3, 8),
        "squares": ones(2, 3, 1),
        "user": ones(2, 2, 8),
        "begins": (0,),
    },
    "sum_events": {"table": ones(5, 3), "events": ints(2, 7, 4), "lengths": (3, 4)},
    "join_inputs": {"tables": TABLES, "inputs": INPUTS},
    "admit_children": {"nodes": ints(2, 3), "users": UNION.users, "index": UNION.index},
    "eligible_nodes": {"users": EXACT.users, "index": EXACT.index},
}
"""Arguments that every body accepts."""

DECODER, ENCODER = (REFERENCE,), (PLAIN_ENCODER, CUDA_ENCODER)
FEATURES, ADMISSION = (PLAIN_FEATURES, CUDA_FEATURES), (REFERENCE, load_ops(CPU))
OTHER_USERS = UserTensors.asking(ones(2, 5).long(), *EXACT.users.sets)
OF_OTHER_NODES = replace(EXACT.users, eligible=ints(1, 9).short())
NO_USERS = UserTensors.asking(ints(0, 1).long(), *EXACT.users.sets)
FEWER_ASKED = replace(EXACT.users, asked=EXACT.users.asked[:2])
BEYOND = Candidates(OFFSETS, ints(4) + 7, ints(4))
Row = tuple[tuple[Any, ...], str, dict[str, Any], str]
WRONG: list[Row] = [
    (DECODER, "self_attention", {"pool": ones(9, 2, 2, 3)}, r"pool must be .*d_head\], got \[9"),
    (DECODER, "self_attention", {"table": ones(5, 4)}, "table must be int32, got float32"),
    (DECODER, "self_attention", {"step": 4}, r"step must be 0\.\.3, got 4"),
    (DECODER, "self_attention", {"step": 2}, rf"table\[0, 2\] is {NO_BLOCK}: not a block 0\.\.8"),
    (DECODER, "cross_attention", {"keys": ones(3, 2, 7)}, r"keys must be .*d_head\], got"),
    (DECODER, "cross_attention", {"key_mask": ones(3, 6) > 0}, r"key_mask .* \[3, 7\], got \[3, 6"),
    (DECODER, "cross_attention", {"queries": ones(7, 10)}, "equally many rows per request: 7 of 3"),
    (DECODER, "rearrange", {"parents": ints(4)}, r"parents must be \[requests, beams\], g"),
    (DECODER, "rearrange", {"parents": ints(1, 2) + 5}, r"parents\[0, 0\] is 5: not a row 0\.\.4"),
    (DECODER, "rearrange", {"parents": ints(2, 1) - 1}, r"parents\[0, 0\] is -1: not a row"),
    (DECODER, "select_beams", {"scores": ones(6)}, r"scores must be \[.* >= 1\], got \[6\]"),
    (DECODER, "select_beams", {"k": 0}, "k must be at least 1, got 0"),
    (DECODER, "select_beams", {"candidates": BEYOND}, "tokens reach 7, logits have 7 columns only"),
    (ENCODER, "rms_norm", {"gain": ones(5)}, r"gain must be \[d\] = \[6\], got"),
    (ENCODER, "attention", {"heads": 3}, "inner must be a multiple of heads"),
    (ENCODER, "attention", {"bias": ones(2, 6)}, r"bias must be .* = \[2, 13\], got \[2, 6\]"),
    (ENCODER, "attention", {"parts": (Part(0, 7, 3, 5),)}, "key=3.* be within 7 queries and 7 k"),
    (ENCODER, "token_product", {"weight": ones(2, 4, 8)}, r"weight .* \[1, 4, 8\], got \[2"),
    (ENCODER, "token_product", {"runs": (Run(1, 0, 3),)}, "must be within 3 tokens and 5 of out"),
    (ENCODER, "token_product", {"after": "open"}, "other must be given for open and add alone"),
    (ENCODER, "token_product", {"after": "gate"}, "a gate needs a square weight"),
    (ENCODER, "share_user", {"begins": (0, 2)}, "must be within 3"),
    (FEATURES, "sum_events", {"lengths": (3, 5)}, r"= \[2, 8, 4\], got \[2, 7, 4"),
    (
        FEATURES,
        "join_inputs",
        {"inputs": replace(INPUTS, bag_offsets=ints(6))},
        "6 bag_offsets and",
    ),
    (ADMISSION, "admit_children", {"nodes": ints(3, 2)}, r"nodes must be .* of 2 users, .*\[3, 2"),
    (ADMISSION, "admit_children", {"users": OTHER_USERS}, r"words\] = \[2, 1\], got \[2, 5"),
    *(
        (ADMISSION, "admit_children", {"nodes": ints(2, 2).index_fill(0, ONE, wrong)}, "neither an")
        for wrong in (UNION.snapshot.trie.first_leaf, -2, 2**31 - 1)
    ),
    *(
        (ADMISSION, "admit_children", {"users": users, "index": index}, message)
        for users, index, message in (
            (UserTensors.asking(UNION.users.bitmask), UNION.index, "as many as the snapshot's"),
            (UNION.users, EXACT.index, "missing, .* pass the users through with_eligible first"),
            (OF_OTHER_NODES, EXACT.index, r"eligible must be \[groups, masks\] = \[1, \d+\]"),
        )
    ),
    (ADMISSION, "eligible_nodes", {"users": OTHER_USERS}, r"words\] = \[2, 1\], got \[2, 5\]"),
    (ADMISSION, "eligible_nodes", {"users": FEWER_ASKED}, "there are 2 .* least 3: encode"),
    (ADMISSION, "eligible_nodes", {"users": NO_USERS}, "users: the batch has none"),
    (ADMISSION, "eligible_nodes", {"index": UNION.index}, "index: it has no lists of mode exact"),
    ((CUDA_DECODER,), "self_attention", {"pool": NARROW, "row_scale": None}, "pool must be contig"),
    ((CUDA_DECODER,), "select_beams", {"logits": ones(6, 14)[:, ::2]}, "logits must be contiguous"),
    ((CUDA_DECODER,), "select_beams", {"logits": ones(6, 7).half()}, "logits must be one of"),
    ((CUDA_DECODER,), "row_factors", {"x": ones(4, 6).T}, "x must be contiguous, got strides"),
    ((CUDA_ENCODER,), "rms_norm", {"x": TURNED, "gain": ones(8)}, "contiguous"),
    *(
        ((CUDA_ENCODER,), name, {argument: tensor.transpose(1, 2)}, "contiguous")
        for name, argument, tensor in (
            ("attention", "queries", ones(2, 8, 7)),
            ("token_product", "x", ones(2, 8, 3)),
            ("share_user", "tokens", ones(2, 8, 3)),
        )
    ),
]


@pytest.mark.parametrize(
    ("tables", "name", "change", "message"), WRONG, ids=[f"{row[1]}-{row[3]}" for row in WRONG]
)
def test_what_does_not_fit_is_refused(
    tables: tuple[Any, ...], name: str, change: dict[str, Any], message: str
) -> None:
    fits = FITS[name]
    is_struct = not isinstance(fits, dict)
    arguments = [replace(fits, **change)] if is_struct else [*{**fits, **change}.values()]
    for table in tables:
        operation = run_once if table in FEATURES else getattr
        with pytest.raises(ValueError, match=message):
            operation(table, name)(*arguments)
