"""The table of the decoder's operations, and its reference: the definition of correct.

An engine is such a table, so a variant is one line: `replace(REFERENCE, self_attention=...)`. The
agreement test walks the table's fields: a new operation without a case there fails it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from grace.kernels.attention import cross_attention as cross
from grace.kernels.attention import prompt_attention as prompts
from grace.kernels.attention import self_attention as prefixes
from grace.kernels.decode.admit_children import AdmitChildren, admit_children_reference
from grace.kernels.decode.select_beams import Choice, select_beams_reference
from grace.kernels.decode.tensors import Beams, DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.kernels.eligibility.eligible_nodes import eligible_nodes_reference
from grace.kernels.products.log_sums import log_sums_reference
from grace.kernels.products.row_factors import activate_reference, row_factors_reference

SelectBeams: TypeAlias = Callable[[Choice], Beams]


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of each operation; its `..._reference` says what it computes."""

    self_attention: Callable[[prefixes.PagedPrefixes], Tensor]
    cross_attention: Callable[[cross.BeamQueries], Tensor]
    causal_attention: Callable[[prompts.PromptTokens], Tensor]
    prompt_attention: Callable[[prompts.PromptQueries], Tensor]
    place_heads: Callable[[prompts.Heads, Tensor], Tensor]  # (heads, pairs)
    log_sums: Callable[[Tensor, Tensor, Tensor], Tensor]  # (rows, head, row_scale)
    row_factors: Callable[[Tensor, float], Tensor]  # (x, eps)
    activate: Callable[[Tensor, Tensor, str], Tensor]  # (hidden, row_scale, ffn)
    eligible_nodes: Callable[[UserTensors, DecodeIndex], Tensor]
    admit_children: AdmitChildren
    select_beams: SelectBeams
    rearrange: Callable[[Tensor, Tensor, int], Tensor]  # (table, parents, step)


REFERENCE = Ops(
    self_attention=prefixes.self_attention_reference,
    cross_attention=cross.cross_attention_reference,
    causal_attention=prompts.causal_attention_reference,
    prompt_attention=prompts.prompt_attention_reference,
    place_heads=prompts.place_heads_reference,
    row_factors=row_factors_reference,
    log_sums=log_sums_reference,
    activate=activate_reference,
    eligible_nodes=eligible_nodes_reference,
    admit_children=admit_children_reference,
    select_beams=select_beams_reference,
    rearrange=prefixes.rearrange_reference,
)


def with_eligible(users: UserTensors, index: DecodeIndex, ops: Ops) -> UserTensors:
    """Return users whom admission can serve: in mode `exact` it reads masks of nodes and rules."""
    if index.exact is None:
        return users
    return replace(users, eligible=ops.eligible_nodes(users, index))
