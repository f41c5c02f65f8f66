"""Clients of a fleet behind Envoy, and the places where its servers listen."""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import grpc

from grace.proto.retrieval_pb2 import RetrieveResponse
from support.live_snapshots import LiveRoot, assert_plain
from support.retrieve_calls import METHOD, message
from support.server_process import ServerProcess

CALL_SECONDS = 20.0
CALLS_PER_SECOND = 10
ONE_RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "grace.v1.AdsRetrieval"}],
            "retryPolicy": {
                "maxAttempts": 2,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class FleetClients:
    """Call at a steady rate while inside, whatever comes back, with one retry on UNAVAILABLE.

    After the block, `ends` counts the calls by status, and `versions` the answers by version.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials,
        live: LiveRoot,
    ) -> None:
        options = (
            ("grpc.service_config", json.dumps(ONE_RETRY)),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channels = [grpc.secure_channel(address, credentials, options) for _ in range(2)]
        self._methods: list[Any] = [each.unary_unary(METHOD) for each in self._channels]
        self._requests = [message(request) for request in live.requests]
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._made = 0
        self._replies: Counter[bytes] = Counter()
        self.ends: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self.ends.total() == self._made, 2 * CALL_SECONDS
            )
        for channel in self._channels:
            channel.close()
        assert ended, "a call has no outcome"

    def wait_for_answers(self, count: int, version: int | None = None) -> None:
        """Return once there are this many more answers, of this version if one is given."""

        def answers() -> int:
            return self.ends["OK"] if version is None else self.versions[version]

        with self._changed:
            wanted = answers() + count
            assert self._changed.wait_for(lambda: answers() >= wanted, 60), self.ends

    def assert_all_plain(self, expected: Mapping[tuple[str, int], RetrieveResponse]) -> None:
        for reply in self._replies:
            assert_plain(RetrieveResponse.FromString(reply), expected)

    @property
    def share_ok(self) -> float:
        return self.ends["OK"] / self.ends.total()

    def _run(self) -> None:
        while not self._stop.wait(1 / CALLS_PER_SECOND):
            request = self._requests[self._made % len(self._requests)]
            method = self._methods[self._made % len(self._methods)]
            with self._changed:
                self._made += 1
            method.future(request, timeout=CALL_SECONDS).add_done_callback(self._ended)

    def _ended(self, call: Any) -> None:
        reply, end = None, call.code().name
        if end == "OK":
            reply = RetrieveResponse.FromString(call.result())
            reply.ClearField("timings")
        else:
            end = f"{end}: {call.details()}"
        with self._changed:
            self.ends[end] += 1
            if reply is not None:
                self.versions[reply.snapshot_version] += 1
                self._replies[reply.SerializeToString(deterministic=True)] += 1
            self._changed.notify_all()


class Place:
    """An address at which one server after another listens."""

    def __init__(self, config: Path, address: str) -> None:
        self.address = address
        self._config = config

    def start(self) -> None:
        self.server = ServerProcess(self._config)
        self.server.__enter__()

    def replace(self) -> None:
        """Drain the server, which must exit with 0, and start another one."""
        self.server.terminate()
        assert self.server.wait() == 0, self.server.lines
        self.start()

    def kill(self) -> None:
        if hasattr(self, "server"):
            self.server.kill()
