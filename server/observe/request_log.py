"""One log line for each call, if the configuration wants it: its end and where its time went."""

import logging

from grace.server.errors import ServiceError
from grace.server.messages import STAGE_NAMES, PendingRequest, queue_seconds
from grace.server.observe.logs import LOGGER

_LOG = logging.getLogger(LOGGER)


def log_request(
    request_id: str | None,
    request: PendingRequest | None,
    seconds: float,
    error: ServiceError | None,
) -> None:
    """`request` is None if the call was refused before it was read."""
    fields: dict[str, object] = {
        "event": "request",
        "request_id": request_id,
        "code": "OK" if error is None else error.code.name,
        "reason": None if error is None else error.reason,
        "field": None if error is None else error.field,
        "batch_size": None,
        "total_us": round(seconds * 1e6),
        "queue_us": None,
        **dict.fromkeys(f"{stage}_us" for stage in STAGE_NAMES),
    }
    if request is not None and request.spans:
        (waited,) = queue_seconds((request,), request.spans)
        fields.update(batch_size=request.batch_size, queue_us=round(waited * 1e6))
        for span in request.spans:
            fields[f"{span.stage}_us"] = round((span.end - span.begin) * 1e6)
    _LOG.info("request", extra=fields)
