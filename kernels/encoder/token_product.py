"""Products of tokens with weights, together with the norm before them and the gate after them.

A call moves runs of tokens: it reads them in one tensor of requests and writes them to another, or
to other places of the same. So tokens need no copies, and tokens of several kinds, each with its
own weight, take one call. A norm's gain is in the weight. Its factor needs a token's sum of
squares, and the writer of a token also writes that sum, in parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from grace.kernels.checks import require_contiguous, require_tensor, sizes_of
from grace.kernels.row_stable import gate, linear, sigmoid

After: TypeAlias = Literal["nothing", "relu", "opening", "open", "gate", "add"]

_AXES = "requests tokens width"

PART = 32  # columns for each of which a writer may give a part of a token's sum of squares


class Run(NamedTuple):
    """Tokens source, source + 1, ... of every request, which become its tokens target, ..."""

    source: int
    target: int
    length: int


class Norm(NamedTuple):
    """Divide a token by sqrt(mean(x^2) + eps)."""

    squares: Tensor  # float32 [B, T, parts]: their sum over the parts is a token's sum of squares
    eps: float


def empty_squares(tokens: Tensor) -> Tensor:
    """Return memory for the squares of tokens [B, T, d]: float32 [B, T, parts]."""
    parts = -(-tokens.shape[2] // PART)
    return tokens.new_empty((*tokens.shape[:2], parts), dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class TokenProduct:
    """Runs of tokens to multiply, and where to write them.

    `after` says what is written for y = x W^T of run i and its token t, with t_out its target:
        "nothing"  y
        "relu"     relu(y)
        "opening"  2 sigmoid(y)
        "open"     relu(y) * other   other [B, 1, runs * wide], the openings of each run
        "gate"     x[:, t] * sigmoid(y)
        "add"      other[:, t_out] + y          other [B, T_out, wide], which may be `out`
    """

    x: Tensor  # [B, T, inner], multiplied as they are, or as `norm` makes them
    weight: Tensor  # [runs, wide, inner], of each run
    out: Tensor  # [B, T_out, wide], may be x, if no target is a source
    runs: Sequence[Run]
    after: After = "nothing"
    other: Tensor | None = None
    norm: Norm | None = None
    squares: Tensor | None = None  # float32 [B, T_out, parts]: gets those of the written tokens

    def check(self) -> None:
        requests, tokens, inner = sizes_of("x", self.x, _AXES)
        weight, out, other, dtype = self.weight, self.out, self.other, self.x.dtype
        runs, wide = len(self.runs), weight.shape[1] if weight.dim() == 3 else 0
        require_tensor("weight", weight, dtype, runs=runs, wide=wide, inner=inner)
        targets = sizes_of("out", out, _AXES)[1]
        require_tensor("out", out, dtype, requests=requests, tokens=targets, wide=wide)
        for run in self.runs:
            if run.source + run.length > tokens or run.target + run.length > targets:
                raise ValueError(f"{run} must be within {tokens} tokens and {targets} of out")
        after = self.after
        if after == "gate" and wide != inner:
            raise ValueError(f"a gate needs a square weight, got {list(weight.shape)}")
        if (other is not None) != (after in ("open", "add")):
            raise ValueError(f"other must be given for open and add alone, here after is {after}")
        if other is not None and after == "open":
            require_tensor("other", other, dtype, requests=requests, one=1, wide=runs * wide)
        elif other is not None:
            require_tensor("other", other, dtype, requests=requests, tokens=targets, wide=wide)
        if self.norm is not None:
            _require_squares("norm.squares", self.norm.squares, self.x)
        if self.squares is not None:
            _require_squares("squares", self.squares, out)


def token_product_reference(given: TokenProduct) -> Tensor:
    """Write the product of every run's tokens to `out`, and return `out`."""
    given.check()
    x, out, after, other = given.x, given.out, given.after, given.other
    norm, squares = given.norm, given.squares
    for i, (run, w) in enumerate(zip(given.runs, given.weight, strict=True)):
        source = slice(run.source, run.source + run.length)
        tokens = x[:, source].float()
        y = linear(tokens, w.float())
        if norm is not None:
            mean = norm.squares[:, source].sum(dim=2, keepdim=True) / x.shape[2]
            y = y * torch.rsqrt(mean + norm.eps)
        target = slice(run.target, run.target + run.length)
        if after == "relu":
            y = torch.relu(y)
        elif after == "gate":
            y = gate(tokens, y)
        elif after == "opening":
            y = 2.0 * sigmoid(y)
        elif after == "open":
            assert other is not None
            y = torch.relu(y) * other.chunk(len(given.runs), dim=2)[i].float()
        elif after == "add":
            assert other is not None
            y = other[:, target].float() + y
        out[:, target] = y.to(out.dtype)
        if squares is not None:
            write_squares(out[:, target], squares[:, target])
    return out


def write_squares(tokens: Tensor, squares: Tensor) -> None:
    """Write the squares of tokens: the whole sum as the first part."""
    squares[:] = 0.0
    squares[:, :, 0] = tokens.float().square().sum(dim=2)


def share_user_reference(
    tokens: Tensor, squares: Tensor, user: Tensor, begins: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Add `user` to the m tokens from each begin on, in place. Return its mean and their squares.

    tokens [B, T, d], squares [B, T, parts], user [B, m, d] -> [B, 1, d], [B, 1, parts]
    """
    check_share_user(tokens, squares, user, begins)
    for begin in begins:
        own = slice(begin, begin + user.shape[1])
        tokens[:, own] += user
        write_squares(tokens[:, own], squares[:, own])
    mean = user.float().mean(dim=1, keepdim=True).to(user.dtype)
    mean_squares = empty_squares(mean)
    write_squares(mean, mean_squares)
    return mean, mean_squares


def check_share_user(tokens: Tensor, squares: Tensor, user: Tensor, begins: Sequence[int]) -> None:
    requests, present, d = sizes_of("tokens", tokens, _AXES)
    count = sizes_of("user", user, _AXES)[1]
    require_tensor("user", user, tokens.dtype, requests=requests, tokens=count, d=d)
    _require_squares("squares", squares, tokens)
    if max(begins, default=0) + count > present:
        raise ValueError(f"{count} tokens from {list(begins)} must be within {present}")


def _require_squares(name: str, squares: Tensor, tokens: Tensor) -> None:
    requests, count, d = tokens.shape
    parts = -(-d // PART)
    require_tensor(name, squares, torch.float32, requests=requests, tokens=count, parts=parts)
    require_contiguous(**{name: squares})
