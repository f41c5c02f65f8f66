"""The normaliser of a large vocabulary: the log of a sum over logits that nothing keeps."""

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor, sizes_of
from grace.kernels.row_stable import linear


def log_sums_reference(rows: Tensor, head: Tensor, row_scale: Tensor) -> Tensor:
    """Return log(sum_v exp(row_scale * (rows head^T)_v)) of every row, in float32.

    rows [rows, d], head [tokens, d], row_scale float32 [rows] -> [rows]
    """
    check_log_sums(rows, head, row_scale)
    return torch.logsumexp(linear(rows.float(), head.float()) * row_scale.unsqueeze(1), dim=1)


def check_log_sums(rows: Tensor, head: Tensor, row_scale: Tensor) -> None:
    count, d = sizes_of("rows", rows, "rows d")
    require_tensor("head", head, rows.dtype, tokens=len(head), d=d)
    require_tensor("row_scale", row_scale, torch.float32, rows=count)
