"""A catalogue of every SID, without its trie: what `no constraints` means to the engine."""

import torch
from torch import Tensor

from grace.kernels import Candidates, DecodeIndex, UserTensors

__all__ = ["EveryToken"]


class EveryToken:
    """An AdmissionSlot: every token continues every beam, whether it lives or not.

    Without constraints nobody reads nodes, so they are the candidates' places, row * V + token: the
    same in every batch and free.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._layouts: dict[int, Candidates] = {}

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """Nothing depends on either."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        """What is the same for every batch is made by the first run, before a capture."""
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
