"""A server's reports on itself: gRPC health, asked and watched, /healthz, and its status."""

import threading
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grace.proto.retrieval_pb2 import GetStatusResponse
from support.server_process import PATIENCE_SECONDS, ServerProcess

SERVICE = "grace.v1.AdsRetrieval"
GONE = "GONE"


def health(server: ServerProcess, service: str = SERVICE) -> str:
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def healthz(server: ServerProcess) -> tuple[int, str]:
    """Return the code and the body of /healthz."""
    try:
        with urlopen(f"http://{server.metrics_address}/healthz", timeout=30) as reply:
            return reply.status, reply.read().decode().strip()
    except HTTPError as error:
        return error.code, error.read().decode().strip()


def status(server: ServerProcess) -> GetStatusResponse:
    with grpc.insecure_channel(server.admin) as channel:
        call: Any = channel.unary_unary("/grace.v1.Admin/GetStatus")
        return GetStatusResponse.FromString(call(b"", timeout=30))


class HealthWatch:
    """Watches from a thread; `seen` are the states in turn, GONE when the stream has ended."""

    def __init__(self, server: ServerProcess, service: str = SERVICE) -> None:
        self._channel = grpc.insecure_channel(server.address)
        stub = health_pb2_grpc.HealthStub(self._channel)
        self._stream: Any = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        self.seen: list[str] = []
        self.not_serving = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.cancel()
        self._thread.join(PATIENCE_SECONDS)
        self._channel.close()

    def _watch(self) -> None:
        try:
            for reply in self._stream:
                name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
                self.seen.append(name)
                if name != "SERVING":
                    self.not_serving.set()
        except grpc.RpcError:
            pass  # the server has gone, or the test has
        self.seen.append(GONE)
        self.not_serving.set()
