"""The limits of a gRPC listener, and the options of gRPC's core that set them.

Beyond these options, gRPC's core refuses calls without a reason or a count. So they are above the
limits of the front end, which refuses calls with a reason and counts them.
"""

from dataclasses import dataclass
from typing import TypeAlias

from grace.configs.serving import ServingConfig

Options: TypeAlias = tuple[tuple[str, int], ...]

OVERSIZE = 4
"""The front end refuses messages of up to this many times the limit, with a reason; gRPC refuses
larger ones."""

MIN_PING_SECONDS = 10.0
"""A client that sends PINGs more often, without calls, loses its connection. gRPC's default of five
minutes would close the connections of proxies that check them."""

WINDOW_BYTES = 1 << 18
"""Half of the most bytes that gRPC keeps of an open call while nothing reads them."""

PENDING = 4
"""Calls that gRPC may hold for the event loop, in multiples of `limits.open_calls`. Their memory
needs a bound, but bursts beyond the open calls must reach the front end, which refuses them."""


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """The limits of a listener; those of connections hold for each process."""

    receive_bytes: int  # the largest message
    calls: int  # open calls of one connection; further ones wait at the client
    pending: int  # calls that the event loop has not seen yet
    # open connections; the server closes further ones. The same number bounds health watches,
    # reflection streams, and calls that wait for their requests
    connections: int
    # the age at which a connection takes no new calls, so that its client reconnects
    age_seconds: float
    grace_seconds: float  # for the calls of a connection of that age to end
    idle_seconds: float  # the time without calls after which a connection closes
    reply_seconds: float  # the time for a client to send a request, and again to read the reply
    reflection: bool  # whether it answers gRPC reflection
    # the silence of a client with open calls after which it gets a PING
    keepalive_seconds: float = 30.0
    # the time for its answer; a client that sends none has gone, or reads nothing at all
    keepalive_timeout_seconds: float = 20.0
    handshake_seconds: float = 10.0  # the time for a new connection to begin HTTP/2

    @classmethod
    def of(cls, config: ServingConfig) -> "ListenLimits":
        limits, listen = config.limits, config.listen
        return cls(
            receive_bytes=OVERSIZE * limits.message_bytes,
            calls=limits.connection_calls,
            pending=PENDING * limits.open_calls,
            connections=limits.connections,
            age_seconds=listen.connection_seconds,
            grace_seconds=listen.drain_seconds,
            idle_seconds=listen.idle_seconds,
            reply_seconds=listen.reply_seconds,
            reflection=listen.reflection,
        )

    def options(self) -> Options:
        return (
            ("grpc.max_receive_message_length", self.receive_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.calls),
            # Without this, the window of a quick connection grows to tens of MiB for each call.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            # Off: it counts a call that has ended until the event loop drops it, so it would
            # refuse calls of clients that keep to the limit of streams.
            ("grpc.http.overload_protection", 0),
            ("grpc.server.max_pending_requests", self.pending),
            ("grpc.server.max_pending_requests_hard_limit", self.pending),
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.max_connection_age_ms", _milliseconds(self.age_seconds)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(self.grace_seconds)),
            ("grpc.max_connection_idle_ms", _milliseconds(self.idle_seconds)),
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            # gRPC also sends a PING to measure a connection, and sends no other PING until the
            # client answers that one. gRPC would wait a minute for this answer.
            ("grpc.http2.ping_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(MIN_PING_SECONDS)),
            ("grpc.server_handshake_timeout_ms", _milliseconds(self.handshake_seconds)),
        )


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
