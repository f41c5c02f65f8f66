"""A catalogue of every SID, without its trie: what `no constraints` means to the engine."""

import torch
from torch import Tensor

from index.trie import NO_NODE
from kernels import Candidates, DecodeIndex, UserTensors

__all__ = ["EveryToken"]

_POSITIVE = (1 << 31) - 1


class EveryToken:
    """An AdmissionSlot: every token continues every live beam.

    Without constraints nobody reads nodes, so they are the candidates' places, the same in every
    batch and free. With `numbered` they are those of the trie of all SIDs, breadth first, modulo
    2^31, and dead beams have no candidates: that costs time, and tells which SIDs were found.
    """

    def __init__(self, vocabulary: int, *, numbered: bool = False) -> None:
        self._vocabulary = vocabulary
        self._numbered = numbered
        self._layouts: dict[int, Candidates] = {}

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """Nothing depends on either."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        layout = self._layout(nodes)
        if not self._numbered:
            return layout
        parents = nodes.reshape(-1, 1)
        tokens = layout.tokens.view(len(parents), self._vocabulary)
        children = (parents * self._vocabulary + tokens + 1) & _POSITIVE
        counts = (parents[:, 0] != NO_NODE).int() * self._vocabulary
        return Candidates(layout.offsets, layout.tokens, children.flatten(), counts)

    def _layout(self, nodes: Tensor) -> Candidates:
        """What is the same for every batch; made by the first run, before a capture."""
        rows = nodes.numel()
        if rows not in self._layouts:
            tokens = torch.arange(self._vocabulary, dtype=torch.int32, device=nodes.device)
            places = torch.arange(
                (rows + 1) * self._vocabulary, dtype=torch.int32, device=nodes.device
            )
            self._layouts[rows] = Candidates(
                offsets=places[:: self._vocabulary].contiguous(),
                tokens=tokens.repeat(rows),
                nodes=places[: -self._vocabulary],
                counts=torch.full_like(places[:rows], self._vocabulary),
            )
        return self._layouts[rows]
