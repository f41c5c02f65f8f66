"""Cross-attention with beams as queries: a request's keys and values exist once for all beams."""

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.products.fp8_products import in_type
from grace.kernels.row_stable import matmul


def cross_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_mask: Tensor,
    scale: float,
    row_scale: Tensor | None = None,
    query_rows: Tensor | None = None,
    dtype: torch.dtype | None = None,
    request_scale: Tensor | None = None,
) -> Tensor:
    """Return softmax_t(scale * q k_t) v_t over the keys t of the row's request.

    queries    [B * M, H * d]      row b * M + m is beam m of request b
    keys       [B, H, T, d], values likewise
    key_mask   bool [B, T]         False: the key gets no weight; it must still be finite
    row_scale  float32 [B * M]     multiplies the row's query: an RMS factor not yet applied
    query_rows int32 [B * M]       if given, queries is [any, H * d] and the query of row r is that
                                   of query_rows[r]: a memo's queries are read in place
    request_scale float32 [B]      multiplies the request's result
    -> [B * M, H * d] in `dtype` or else the queries' type, computed in float32; zeros for a request
       without any key
    """
    check_cross_attention(queries, keys, values, key_mask, row_scale, query_rows, request_scale)
    if query_rows is not None:
        queries = queries[query_rows.long()]
    requests, heads, _, d_head = keys.shape
    q = queries.float() if row_scale is None else queries.float() * row_scale.unsqueeze(1)
    q = q.view(requests, -1, heads, d_head).transpose(1, 2)  # [B, H, M, d]
    scores = scale * matmul(q, keys.float().transpose(-1, -2))  # [B, H, M, T]
    ignored = ~key_mask[:, None, None, :]
    # The least finite number, not -inf: without any key the weights are even, not NaN.
    scores = scores.masked_fill(ignored, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1).masked_fill(ignored, 0.0)
    mixed = matmul(weights, values.float())
    if request_scale is not None:
        mixed = mixed * request_scale[:, None, None, None]
    mixed = mixed.transpose(1, 2).reshape(queries.shape)
    return in_type(mixed, dtype or queries.dtype)


def check_cross_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    key_mask: Tensor,
    row_scale: Tensor | None,
    query_rows: Tensor | None,
    request_scale: Tensor | None = None,
) -> None:
    """Check shapes and types only, so that a GPU is not waited for."""
    if keys.dim() != 4:
        raise ValueError(f"keys must be [requests, heads, tokens, d_head], got {list(keys.shape)}")
    requests, heads, tokens, d_head = keys.shape
    require_tensor("values", values, requests=requests, heads=heads, tokens=tokens, d_head=d_head)
    require_tensor("key_mask", key_mask, torch.bool, requests=requests, tokens=tokens)
    require_tensor("queries", queries, rows=len(queries), inner=heads * d_head)
    rows = len(queries) if query_rows is None else len(query_rows)
    if query_rows is not None:
        require_tensor("query_rows", query_rows, torch.int32, rows=rows)
    if row_scale is not None:
        require_tensor("row_scale", row_scale, torch.float32, rows=rows)
    if request_scale is not None:
        require_tensor("request_scale", request_scale, torch.float32, requests=requests)
    if requests == 0 or rows % requests:
        raise ValueError(f"queries must be equally many rows per request: {rows} of {requests}")
