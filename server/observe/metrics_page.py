"""GET /metrics over HTTP, on its own threads: a scrape never waits for the event loop."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from grace.server.observe.thread_names import name_this_thread

_PATH = "/metrics"
_PATIENCE_SECONDS = 10  # with a client that is slow to ask or to read
_MOST_CLIENTS = 8  # at once; one more makes the oldest give way


class MetricsPage:
    """Listens once constructed; raises OSError if it cannot."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._server = _Server(family, place[:2], registry)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="grace-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        name_this_thread("grace-metrics")
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self, family: socket.AddressFamily, place: Any, registry: CollectorRegistry
    ) -> None:
        self.address_family = family
        self.registry = registry
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, None] = {}  # oldest first
        super().__init__(place, _Page)

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
    server: _Server
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"this server has {_PATH} only")
            return
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.server.registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are not worth a line."""
