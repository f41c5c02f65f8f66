"""A gRPC server whose behaviour a test knows: its answers are a function of the test's."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from grace.bench.load.shots import Shot
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse, Timings

Answer: TypeAlias = Callable[[bytes, Any], bytes]

SHOTS = tuple(Shot(RetrieveRequest(request_id=f"r{i}").SerializeToString()) for i in range(7))
REPLY = RetrieveResponse(
    ad_ids=[3, 1, 2],
    scores=[-1, -2, -4],
    timings=Timings(queue_us=5, input_us=10, features_us=20, generate_us=30, post_us=40),
).SerializeToString()


@contextmanager
def known_server(answer: Answer, threads: int = 8, warm_up: int = 4) -> Iterator[str]:
    """Serve Retrieve with `answer`, on N threads; the first `warm_up` calls get REPLY."""
    numbers = itertools.count()

    def warm(request: bytes, context: Any) -> bytes:
        return REPLY if next(numbers) < warm_up else answer(request, context)

    pool = ThreadPoolExecutor(threads)
    serving = grpc.server(pool)
    method: Any = grpc.unary_unary_rpc_method_handler(warm)
    serving.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grace.v1.AdsRetrieval", {"Retrieve": method}),)
    )
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        serving.stop(None).wait()
        pool.shutdown()
