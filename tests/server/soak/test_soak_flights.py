"""Under load, while flights start and end: each reply is what plain Python says for its own time.

FLIGHT_SECONDS is the length of the load.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from grace.index.builder import build
from grace.index.targeting.schema import (
    CLOCKS,
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse
from support.builds import build_spec, silent
from support.oracle import RawAd
from support.plain_replies import assert_plain
from support.served import METHOD, front_ends
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.strategies import Case, asking, random_ads, random_user

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("FLIGHT_SECONDS", "20"))
LASTS = int(1000 * (SECONDS + 10))  # flights change while the server starts, too
CLIENTS, ADS, USERS = 6, 777, 99
FLIGHTS = ("flight", "embargo")
SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", ("NO", "SE", "US"), None, missing_passes_exclude=True),
        Attribute("hour", tuple(map(str, range(CLOCKS["hour_of_day"]))), clock="hour_of_day"),
    ),
    sets=(TargetSet("location", 256, 4, 64),),
    hash_seed=7,
    ranges=(Range("age", missing_passes=True),),
    flights=tuple(map(Flight, FLIGHTS)),
    properties=(Property("category"),),
)
FIXED = set(SCHEMA.names) - set(FLIGHTS)
MODEL = model_spec()


def flying_ads(rng: np.random.Generator, begin: int) -> Iterator[RawAd]:
    """Random ads with a third of their rules and short flights; a third have these in clauses."""

    def flight() -> tuple[int | None, int | None]:
        start, end = (begin + int(after) for after in sorted(rng.choice(LASTS, 2, replace=False)))
        kind = rng.random()
        return (None if kind < 0.3 else start, None if kind > 0.7 else end)

    for ad in random_ads(rng, SCHEMA, MODEL.vocab_sizes, ADS):
        own = {n: rule for n, rule in ad.rules.items() if n in FIXED and rng.random() < 0.3}
        if rng.random() < 0.3:
            clauses = tuple({"flight": flight()} for _ in range(rng.integers(2, 4)))
            yield replace(ad, rules=own | {"embargo": flight()}, clauses=clauses)
        else:
            yield replace(ad, rules=own | {"flight": flight()}, clauses=())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Client(threading.Thread):
    """Sends the requests again and again until `end`, and keeps what was answered."""

    def __init__(self, address: str, requests: Sequence[RetrieveRequest], end: float) -> None:
        super().__init__()
        self._address, self._requests, self._end = address, requests, end
        self.answers: list[tuple[RetrieveRequest, int, bytes, int]] = []

    def run(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            retrieve: Any = channel.unary_unary(METHOD)
            while time.monotonic() < self._end:
                request = self._requests[len(self.answers) % len(self._requests)]
                sent = now_ms()
                reply = retrieve(request.SerializeToString(), timeout=30)
                self.answers.append((request, sent, reply, now_ms()))


def requests_of(rng: np.random.Generator, client: int, begin: int) -> list[RetrieveRequest]:
    """Requests that get all of their ads, or three; a tenth of them say a time."""
    requests = []
    for number in range(USERS):
        request = asking(random_user(rng, SCHEMA))
        request.request_id = f"{client}-{number}"
        request.max_ads, request.include_sids = int(rng.choice([3, 1000, 1000])), True
        request.at = 0 if rng.random() < 0.9 else begin + int(rng.integers(LASTS))
        requests.append(request)
    return requests


def as_json(request: RetrieveRequest) -> dict[str, Any]:
    given: dict[str, Any] = MessageToDict(request, preserving_proto_field_name=True)
    return {"user": {}, **given}


@front_ends
def test_no_ad_is_returned_outside_of_its_flight_and_none_inside_is_lost(
    serving_files: ServingFiles, tmp_path: Path, front_ends: int
) -> None:
    rng, begin = np.random.default_rng(7), now_ms()
    ads = tuple(flying_ads(rng, begin))
    spec = build_spec(tmp_path, Case(SCHEMA, MODEL.vocab_sizes, ads, ()))
    build(replace(spec, sid_space=MODEL.sid_space), silent)
    config = serving_files.write_config(
        f"flights-{front_ends}.yaml",
        snapshots=str(spec.root),
        listen={"front_ends": front_ends},
        logs={"requests": False},
    )
    with ServerProcess(config) as server:
        end = time.monotonic() + SECONDS
        requests = [requests_of(rng, at, begin) for at in range(CLIENTS)]
        clients = [Client(server.address, own, end) for own in requests]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    returned: dict[int, set[int]] = defaultdict(set)
    for request, sent, encoded, received in chain(*(client.answers for client in clients)):
        reply = RetrieveResponse.FromString(encoded)
        assert reply.at == request.at if request.at else sent <= reply.at <= received
        assert_plain(SCHEMA, ads, as_json(request), reply)
        if not request.at:
            returned[reply.at].update(reply.ad_ids)
    batches, first, last = len(returned), min(returned), max(returned)
    rules = [rules for ad in ads for rules in (ad.rules, *ad.clauses)]
    ends = [end for each in rules for name in FLIGHTS for end in each.get(name, ())]
    changes = sum(end is not None and first < end <= last for end in ends)
    seen = len(set().union(*returned.values()))
    print(f"{batches} batches returned {seen} ads; {changes} flights began or ended meanwhile")
    assert batches > 10 * SECONDS
    assert changes > ADS // 4
    assert seen > ADS // 9
