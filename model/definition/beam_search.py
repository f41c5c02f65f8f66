"""Generation, defined. Every faster engine computes this function.

At each step, every live beam row yields logits over the step's tokens. Its score for a token is its
own score plus the token's log-probability. Only tokens are kept that continue the row's prefix in
the catalogue and are admitted for the user; of those the best remain, ties going to the lower beam
row, then the lower token. New beam rows keep the order of the rows and tokens they come from, so
children of one parent stay adjacent; only the last step orders by score.

Where fewer tokens are admitted than beams are wanted, the rest is dead: score -inf and no node. A
dead beam has no children, so it never comes back, and a user for whom nothing is eligible gets no
SIDs at all.

Where the numbers of a request are not finite, its order means nothing: it is corrupt, all its beams
die, and the other requests of the batch go on as if it were not there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE, ROOT
from grace.kernels import Beams, DecodeIndex, Ops, UserTensors
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext

__all__ = ["Generated", "beam_search", "leaves_of", "require_together", "root_beams"]


@dataclass(frozen=True, slots=True)
class Generated:
    """The SIDs of B requests, best first; dead ones NO_NODE with score -inf, at the end.

    leaves  int32 [B, num_sids]     leaf numbers: leaf i is the i-th SID of the snapshot
    scores  float32 [B, num_sids]   the SID's log-probability
    corrupt bool [B]                at some step the model's numbers were not finite: no SID is live
    """

    leaves: Tensor
    scores: Tensor
    corrupt: Tensor

    def require_finite(self) -> None:
        """For work that has no use for a part of its requests."""
        if self.corrupt.any():
            request = int(self.corrupt.nonzero()[0])
            raise ValueError(
                f"request {request}: the model's numbers are not finite; "
                "its weights are too large, or its training diverged"
            )


@torch.inference_mode()
def beam_search(
    decoder: Decoder,
    context: UserContext,
    users: UserTensors,
    index: DecodeIndex,
    profile: BeamProfile,
    ops: Ops,
) -> Generated:
    require_together(decoder.vocab_sizes, index, profile)
    _require_users(users, context)
    batch = len(context.states)
    cross = decoder.cross_cache(context)
    # One block per token of every beam row: blocks are never reused, so prefixes can be shared.
    pools = decoder.new_pools(batch * sum(profile.beams))
    beams = root_beams(batch, context.states.device)
    table = beams.nodes.new_zeros((batch, decoder.sid_length))
    corrupt = beams.corrupt
    first_block = 0
    for step, width in enumerate(profile.beams):
        rows = batch * width
        last = step + 1 == decoder.sid_length
        table[:, step] = first_block + torch.arange(rows, device=table.device)
        first_block += rows
        logits = decoder.step(step, beams.tokens.flatten(), pools, table, cross, ops)
        candidates = ops.admit_children(beams.nodes, users, index)
        kept = profile.kept_after(step)
        beams = ops.select_beams(logits, beams.scores, candidates, kept, ordered=last)
        corrupt = corrupt | beams.corrupt
        table = ops.rearrange(table, beams.parents, step)
    return Generated(leaves_of(beams.nodes, index), beams.scores, corrupt)


def leaves_of(nodes: Tensor, index: DecodeIndex) -> Tensor:
    """The numbers of nodes of the last level among the leaves; NO_NODE stays."""
    return (nodes - index.first_leaf).masked_fill(nodes == NO_NODE, NO_NODE)


def root_beams(batch: int, device: torch.device) -> Beams:
    """One beam per request, at the empty prefix; it continues nothing and appended no token."""
    none = torch.zeros((batch, 1), dtype=torch.int32, device=device)
    return Beams(
        parents=none,
        tokens=none,
        nodes=torch.full_like(none, ROOT),
        scores=torch.zeros((batch, 1), device=device),
        corrupt=torch.zeros(batch, dtype=torch.bool, device=device),
    )


def require_together(
    vocab_sizes: tuple[int, ...], index: DecodeIndex, profile: BeamProfile
) -> None:
    """A model's vocabulary, a snapshot and a beam profile are for SIDs of one kind."""
    if vocab_sizes != index.vocab_sizes:
        raise ConfigError(
            f"the model's vocabulary sizes are {vocab_sizes}, the snapshot's are "
            f"{index.vocab_sizes}; load a pair that belongs together"
        )
    if len(profile.beams) != len(vocab_sizes):
        raise ConfigError(
            f"beams: {list(profile.beams)} has {len(profile.beams)} steps, a SID has "
            f"{len(vocab_sizes)} tokens"
        )


def _require_users(users: UserTensors, context: UserContext) -> None:
    if len(users.bitmask) != len(context.states):
        raise ValueError(
            f"users must be of {len(context.states)} requests, as the user context, "
            f"got {len(users.bitmask)}"
        )
