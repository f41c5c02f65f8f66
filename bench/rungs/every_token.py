"""A catalogue of every SID, without its trie: the engine's admission without constraints."""

import torch
from torch import Tensor

from grace.kernels import Candidates, DecodeIndex, UserTensors


class EveryToken:
    """An AdmissionSlot in which every token continues every beam, live or dead.

    Nothing reads nodes without constraints, so they are the candidates' places, row * V + token:
    the same in every batch, and free.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._layouts: dict[int, Candidates] = {}

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        """Do nothing: candidates depend on neither."""

    def admit_children(self, nodes: Tensor) -> Candidates:
        """Return candidates that the first run makes, before a graph is recorded."""
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
