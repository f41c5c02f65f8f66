"""A gRPC server that has its reply ready: the latency of a call is that of gRPC and its caller."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc
import uvloop

from grace.bench.load.client_process import spawned
from grace.proto.retrieval_pb2 import DESCRIPTOR, RetrieveResponse

_ADS = 600  # about as many as a request of the paper's catalogue gets
_REPLY = RetrieveResponse(ad_ids=range(_ADS), scores=[-1.0] * _ADS).SerializeToString()


@contextmanager
def prompt_server() -> Iterator[str]:
    """Run the server in a separate process inside `with`; yield its HOST:PORT."""
    with spawned(_serve) as (_, pipe):
        yield pipe.recv()


def _serve(pipe: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer_calls(pipe))


async def _answer_calls(pipe: Connection) -> None:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_reply)
    service = DESCRIPTOR.services_by_name["AdsRetrieval"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Retrieve": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()


async def _reply(message: bytes, context: object) -> bytes:  # noqa: ARG001
    return _REPLY
