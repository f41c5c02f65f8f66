"""Generation, defined: every faster engine computes this function.

At each step, a live beam row has logits over the step's tokens. A token's score is the row's score
plus the token's log-probability. A token is a candidate if it continues the row's prefix in the
catalogue and is admitted for the user. The best candidates become the new beam rows; ties go to the
lower beam row, then the lower token. New rows keep the order of their candidates, so children of
one parent stay adjacent; only the last step sorts by score. Missing beams are dead: they have score
-inf and no node, and never come back. A request whose numbers are not finite is corrupt: all its
beams die, and the other requests of the batch do not notice.
"""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.index.trie import ROOT
from grace.kernels import Beams, DecodeIndex, Ops, UserTensors
from grace.kernels.decode.select_beams import Choice

Context = TypeVar("Context", bound=Sized, contravariant=True)
Cache = TypeVar("Cache")


class SearchableDecoder(Protocol[Context, Cache]):
    """A decoder of any family. It reads the contexts of requests, then computes step by step."""

    vocab_sizes: tuple[int, ...]
    sid_length: int

    def begin(self, context: Context, /) -> Cache:
        """Return what every step reads of the contexts."""

    def new_pools(self, blocks: int, /) -> tuple[Tensor, ...]:
        """Return memory per layer for the tokens of beams, a block for each."""

    def step(
        self,
        step: int,
        tokens: Tensor,
        pools: tuple[Tensor, ...],
        table: Tensor,
        cache: Cache,
        ops: Ops,
        /,
    ) -> Tensor:
        """Return the logits of every beam row, and write the step's blocks to the pools."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The SIDs of B requests, best first. Dead ones come last: NO_NODE with score -inf."""

    leaves: Tensor  # int32 [B, num_sids], leaf numbers: leaf i is the i-th SID of the snapshot
    scores: Tensor  # float32 [B, num_sids]: log-probabilities of the SIDs
    corrupt: Tensor  # bool [B], the model's numbers were not finite at some step: no live SID

    def packed(self) -> Tensor:
        """Return the three side by side as bytes, so that one copy moves them.   uint8 [n]"""
        tensors = self.leaves, self.scores, self.corrupt
        return torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors])

    @staticmethod
    def unpacked(packed: Tensor, requests: int) -> "Generated":
        """Return views of what `packed` returned for this number of requests."""
        each = (len(packed) - requests) // 2  # bytes of the leaves, and of the scores
        leaves, scores, corrupt = packed.split_with_sizes([each, each, requests])
        return Generated(
            leaves.view(torch.int32).view(requests, -1),
            scores.view(torch.float32).view(requests, -1),
            corrupt.view(torch.bool),
        )

    def require_finite(self) -> None:
        """Raise if any request is corrupt, for callers that need all of them."""
        if self.corrupt.any():
            request = int(self.corrupt.nonzero()[0])
            raise ValueError(
                f"request {request}: the model's numbers are not finite; "
                "its weights are too large, or its training diverged"
            )


@torch.inference_mode()
def beam_search(
    decoder: SearchableDecoder[Context, Cache],
    context: Context,
    users: UserTensors,
    index: DecodeIndex,
    profile: BeamProfile,
    ops: Ops,
) -> Generated:
    require_together(decoder.vocab_sizes, index, profile)
    batch, device = len(context), users.bitmask.device
    if len(users.bitmask) != batch:
        raise ValueError(
            f"users: {len(users.bitmask)} rows, but the user context has {batch} requests: "
            "give both for the same batch"
        )
    cache = decoder.begin(context)
    # Every token of every beam row gets its own block, so beams can share the blocks of a prefix.
    pools = decoder.new_pools(batch * sum(profile.beams))
    beams = root_beams(batch, device)
    table = beams.nodes.new_zeros((batch, decoder.sid_length))
    corrupt = beams.corrupt
    first_block = 0
    for step, width in enumerate(profile.beams):
        rows = batch * width
        last = step + 1 == decoder.sid_length
        table[:, step] = first_block + torch.arange(rows, device=table.device)
        first_block += rows
        logits = decoder.step(step, beams.tokens.flatten(), pools, table, cache, ops)
        candidates = ops.admit_children(beams.nodes, users, index)
        kept = profile.kept_after(step)
        beams = ops.select_beams(Choice(logits, beams.scores, candidates, kept, ordered=last))
        corrupt = corrupt | beams.corrupt
        table = ops.rearrange(table, beams.parents, step)
    return Generated(index.leaves_of(beams.nodes), beams.scores, corrupt)


def root_beams(batch: int, device: torch.device) -> Beams:
    """Return one beam per request: the empty prefix."""
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
    """Check that a model, a snapshot and a beam profile are for the same kind of SIDs."""
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
