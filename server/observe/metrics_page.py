"""Pages for Prometheus and for probes, served by threads that never wait for the event loop."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from grace.server.observe.timeline import LATEST
from grace.server.server_state import Phase, ServerState
from grace.server.threads import daemon_thread

_MOST_CLIENTS = 8  # at once: more could take the descriptors that gRPC needs
_PATIENCE_SECONDS = 10  # with a client that is slow to ask or to read
_STALLED_SECONDS = 5.0  # without a turn of the event loop: no call is answered meanwhile


class MetricsPage(ThreadingMixIn, TCPServer):
    """Listens once constructed; raises OSError if it cannot."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, state: ServerState
    ) -> None:
        place: Any
        self.address_family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.registry = registry
        self.state = state
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, None] = {}  # oldest first
        super().__init__(place[:2], _Page)
        self.port = int(self.server_address[1])
        serve = partial(self.serve_forever, poll_interval=0.05)
        self._thread = daemon_thread("grace-metrics", serve)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._clients) >= _MOST_CLIENTS:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                with suppress(OSError):  # it may have hung up itself
                    oldest.shutdown(socket.SHUT_RDWR)
            self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: a client that hangs up in the middle is no fault of the server's."""


class _Page(BaseHTTPRequestHandler):
    server: MetricsPage
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode: Callable[[CollectorRegistry], bytes]
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))
            case "/healthz":
                state = self.server.state
                stalled = state.loop_lag.late() > _STALLED_SECONDS
                serves = state.phase == Phase.SERVING and not stalled
                status = HTTPStatus.OK if serves else HTTPStatus.SERVICE_UNAVAILABLE
                word = "STALLED" if stalled else state.phase.name
                self._answer(status, "text/plain; charset=utf-8", f"{word}\n".encode())
            case "/timeline":
                trace = self.server.state.timeline.trace(LATEST)
                self._answer(HTTPStatus.OK, "application/json", trace.encode())
            case _:
                pages = "there are /metrics, /healthz and /timeline"
                self.send_error(HTTPStatus.NOT_FOUND, explain=pages)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are not worth a line."""
