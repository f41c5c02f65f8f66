"""Cross-attention with beams as queries: a request's keys and values exist once for all beams."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.checks import require_optional, require_tensor, sizes_of
from grace.kernels.products.fp8_products import in_type
from grace.kernels.row_stable import masked_softmax, matmul


@dataclass(frozen=True, slots=True)
class BeamQueries:
    """The queries of beams to the user contexts of their requests; all have one type."""

    queries: Tensor  # [B * M, H * d]: row b * M + m is beam m of request b
    keys: Tensor  # [B, H, T, d], values likewise
    values: Tensor
    key_mask: Tensor  # bool [B, T], False: the key gets no weight; it must still be finite
    scale: float
    # float32 [B * M], multiplies the row's query: an RMS factor not yet applied
    row_scale: Tensor | None = None
    # int32 [B * M]. If given, queries is [any, H * d] and the query of row r is that of
    # query_rows[r]: a memo's queries are read in place
    query_rows: Tensor | None = None
    dtype: torch.dtype | None = None  # of the result; None: the queries' type
    request_scale: Tensor | None = None  # float32 [B]: multiplies the request's result

    @property
    def rows(self) -> int:
        return len(self.queries if self.query_rows is None else self.query_rows)

    def check(self) -> None:
        rows, dtype = self.rows, self.keys.dtype
        requests, heads, tokens, d = sizes_of("keys", self.keys, "requests heads tokens d_head")
        require_tensor(
            "values", self.values, dtype, requests=requests, heads=heads, tokens=tokens, d=d
        )
        require_tensor("key_mask", self.key_mask, torch.bool, requests=requests, tokens=tokens)
        require_tensor("queries", self.queries, dtype, rows=len(self.queries), inner=heads * d)
        require_optional("query_rows", self.query_rows, torch.int32, rows=rows)
        require_optional("row_scale", self.row_scale, torch.float32, rows=rows)
        require_optional("request_scale", self.request_scale, torch.float32, requests=requests)
        if requests == 0 or rows % requests:
            raise ValueError(f"queries must be equally many rows per request: {rows} of {requests}")


def cross_attention_reference(given: BeamQueries) -> Tensor:
    """Return softmax_t(scale * q k_t) v_t over the keys t of the row's request.

    -> [B * M, H * d], computed in float32; zeros for a request without any key
    """
    given.check()
    keys, row_scale = given.keys, given.row_scale
    queries = given.queries
    if given.query_rows is not None:
        queries = queries[given.query_rows.long()]
    requests, heads, _, d_head = keys.shape
    q = queries.float() if row_scale is None else queries.float() * row_scale.unsqueeze(1)
    q = q.view(requests, -1, heads, d_head).transpose(1, 2)  # [B, H, M, d]
    scores = given.scale * matmul(q, keys.float().transpose(-1, -2))  # [B, H, M, T]
    mixed = matmul(masked_softmax(scores, given.key_mask), given.values.float())
    if given.request_scale is not None:
        mixed = mixed * given.request_scale[:, None, None, None]
    mixed = mixed.transpose(1, 2).reshape(queries.shape)
    return in_type(mixed, given.dtype or queries.dtype)
