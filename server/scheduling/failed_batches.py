"""When failed batches mean that a stage is broken, and not just that one request is bad."""

from collections.abc import Sequence

import torch

from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.messages import PendingRequest

FAILURES_OF_A_BROKEN_STAGE = 3
"""In a row."""

DEVICE_ERRORS = (torch.AcceleratorError, torch.cuda.CudaError)
"""After one of these, nothing that the device returns can be trusted."""


class FailedBatches:
    """Counts the batches that failed in one stage in a row.

    A request that fails alone in its batch counts once, however often its caller sends it again: it
    may be the only cause, and it must not take one server after the other down.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._alone: set[bytes] = set()

    def broken_by(self, error: Exception, requests: Sequence[PendingRequest]) -> bool:
        """Count a batch that failed; return whether the stage is broken."""
        if isinstance(error, DEVICE_ERRORS):
            return True
        if len(requests) == 1:
            content = _content(requests[0].retrieval.message)
            if content in self._alone:
                return False
            self._alone.add(content)
        self._counted += 1
        return self._counted >= FAILURES_OF_A_BROKEN_STAGE

    def clear(self) -> None:
        """Start again, after a batch that did not fail."""
        self._counted = 0
        self._alone.clear()


def _content(message: bytes) -> bytes:
    """The same for every retry of a request: all of it but its id."""
    request = RetrieveRequest.FromString(message)
    request.ClearField("request_id")
    return request.SerializeToString(deterministic=True)
