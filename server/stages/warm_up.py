"""Before a pair serves, every beam profile and batch size goes through all four stages with it.

So no request pays for what is slow once (memory, kernels, pages of the tables). At the start, the
times of a second pass plan the first requests.
"""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch
from google.protobuf.json_format import Parse, ParseError

from grace.configs.errors import ConfigError, InputError
from grace.configs.generation import GenerationConfig
from grace.configs.regular_files import read_regular
from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.messages import Failure, PendingRequest, RequestBatch, Retrieval, Span, StageName
from grace.server.stages.requests import read_request
from grace.server.stages.stages import Stages

Made = TypeVar("Made")
_MOST_FILE_BYTES = 256 << 20
Observe = Callable[[str, int, tuple[Span, ...]], None]


def warm_up_requests(
    path: Path | None, limits: LimitsConfig, generation: GenerationConfig
) -> tuple[Retrieval, ...]:
    """Read a file of JSON lines in the API's JSON form; without one, take an empty request."""
    if path is None:
        return (read_request(b"", limits, generation),)
    try:
        lines = read_regular(path, _MOST_FILE_BYTES).decode().split("\n")
    except OSError as error:
        fault = f"cannot be read: {error.strerror}; correct it, or name another file"
        raise InputError(f"{path}: {fault}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; write one JSON request a line") from None
    requests: list[Retrieval] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            message = Parse(line, RetrieveRequest()).SerializeToString()
            requests.append(read_request(message, limits, generation))
        except ParseError as error:
            fault = str(error).splitlines()[0]
            raise InputError(f"{path}: line {number}: not a request: {fault}") from None
        except ServiceError as error:
            raise InputError(f"{path}: line {number}: {error.text}") from None
    if not requests:
        raise InputError(f"{path}: holds no request; write one JSON request a line")
    return tuple(requests)


def warm_up(
    stages: Stages,
    pair: ServingPair,
    generation: GenerationConfig,
    requests: Sequence[Retrieval],
    # gets the times of each profile and bucket once they are warm; None: the pair warms up next to
    # live batches, whose times say more
    observe: Observe | None,
    after_batch: Callable[[float], None] = lambda _: None,  # gets the seconds of each batch
    buckets: Sequence[int] | None = None,  # the batch sizes to run; None: all of them
) -> None:
    """Raise ConfigError if a request fails: the server would not be ready for it."""
    rounds = 1 if observe is None else 2  # the first one pays for what is slow once
    for name, profile in generation.profiles.items():
        for bucket in buckets or generation.batch_buckets:
            for turn in range(rounds):
                first = turn * bucket % len(requests)
                now = perf_counter()
                batch = RequestBatch(
                    pair=pair,
                    profile_name=name,
                    profile=profile,
                    bucket=bucket,
                    requests=tuple(
                        PendingRequest(retrieval, now, float("inf"))
                        for retrieval in islice(cycle(requests), first, first + bucket)
                    ),
                )
                try:
                    spans = _run(stages, batch)
                except (MemoryError, RuntimeError) as error:  # torch reports memory by these
                    raise ConfigError(
                        f"generation.profiles.{name}: a batch of {bucket} cannot be computed here: "
                        f"{str(error).splitlines()[0]}; give smaller beams or a smaller max_batch"
                    ) from None
                after_batch(spans[-1].end - spans[0].begin)
                if observe is not None and turn + 1 == rounds:
                    observe(name, bucket, spans)


def _run(stages: Stages, batch: RequestBatch) -> tuple[Span, ...]:
    """Run the stages one after another. Unlike the pipeline, wait for each."""
    device = batch.pair.device
    spans: list[Span] = []

    def timed(stage: StageName, work: Callable[[], Made]) -> Made:
        begin = perf_counter()
        made = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spans.append(Span(stage, begin, perf_counter()))
        return made

    prepared = timed("input", lambda: stages.input(batch))
    _require_none(prepared.failures)
    features = timed("features", lambda: stages.features(prepared))
    generated = timed("generate", lambda: stages.generate(features))
    answered = timed("post", lambda: stages.post(generated, tuple(spans)))
    _require_none(answered.failures)
    return tuple(spans)


def _require_none(failures: Sequence[Failure]) -> None:
    for failure in failures:
        request_id, fault = failure.request.retrieval.request_id, failure.error.text
        if failure.error.reason == "not_finite":
            fault = "the model's numbers for it are not finite"
        raise ConfigError(
            f"warm_up: request {request_id!r}: {fault}; "
            "a server that fails on its own requests is not started"
        )
