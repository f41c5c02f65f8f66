"""A line for each call, if the configuration wants it: who, how it ended, where its time went."""

import logging
from dataclasses import dataclass

from grace.server.errors import ServiceError
from grace.server.messages import AnsweredBatch, PendingRequest, Span
from grace.server.observe.logs import LOGGER

__all__ = ["RequestLog"]

_LOG = logging.getLogger(LOGGER)
_STAGES = ("input", "features", "generate", "post")


@dataclass(frozen=True, slots=True)
class _Batch:
    size: int
    spans: tuple[Span, ...]


class RequestLog:
    """Requests and their batches meet here: `batch_done` comes first, from the post stage."""

    def __init__(self) -> None:
        self._batches: dict[PendingRequest, _Batch] = {}

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        batch = _Batch(len(answered.input.batch.requests), spans)
        for request in answered.input.requests:
            self._batches[request] = batch

    def forget(self, request: PendingRequest) -> None:
        self._batches.pop(request, None)

    def write(
        self,
        request_id: str | None,
        request: PendingRequest | None,
        seconds: float,
        error: ServiceError | None,
    ) -> None:
        batch = None if request is None else self._batches.pop(request, None)
        fields: dict[str, object] = {
            "event": "request",
            "request_id": request_id,
            "code": "OK" if error is None else error.code.name,
            "reason": None if error is None else error.reason,
            "field": None if error is None else error.field,
            "batch_size": None if batch is None else batch.size,
            "total_us": round(seconds * 1e6),
            "queue_us": None,
            **dict.fromkeys(f"{stage}_us" for stage in _STAGES),
        }
        if batch is not None and request is not None:
            worked = 0.0
            for span in batch.spans:
                fields[f"{span.stage}_us"] = round((span.end - span.begin) * 1e6)
                worked += span.end - span.begin
            waited = batch.spans[-1].end - request.arrived - worked
            fields["queue_us"] = round(max(0.0, waited) * 1e6)
        _LOG.info("request", extra=fields)
