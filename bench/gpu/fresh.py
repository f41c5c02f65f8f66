"""Changes of ads back to back, and what they cost a load: parts of `grace bench serve`.

A change is one call of UpdateAds, which returns once the server serves it. Its seconds count from
the call, so they include its acknowledgement. During the loads, one more caller asks for replies
with all SIDs. If one is not right (changed_ads.py), there is no row.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from time import perf_counter

from grace.bench.background import in_background
from grace.bench.gpu.instruments.changed_ads import ChangedAds, SeenReply
from grace.bench.gpu.subjects.served import (
    Served,
    ServedFiles,
    alone_facts,
    load_server,
)
from grace.bench.load.client import OpenLoop
from grace.bench.load.ghz import percentile
from grace.bench.load.soak.holdings import memory_gb
from grace.bench.result_file import Row
from grace.bench.running_server import RunningServer
from grace.catalogues.paper.changes import PaperChanges
from grace.client import AdminClient, Client
from grace.configs.eligibility import CD
from grace.configs.errors import DeviceError
from grace.index.storage import load_snapshot
from grace.proto.retrieval_pb2 import RetrieveRequest, UpdateAdsRequest

RATES = (400.0, 1000.0)
CHANGES = 100  # without a load
ADS = 1_000  # of a change; at most a quarter of the catalogue's

_CALL_SECONDS = 60.0  # the most that a call may take
_CHECK_SECONDS = 0.05  # between two replies that are compared


def measure_changes(served: Served, measures: Sequence[str]) -> Iterator[Row]:
    """Measure `visible` and `fresh` with one server."""
    with (
        served.server("fresh", served.many) as server,
        AdminClient(server.admin_address) as admin,
        Client(server.address, retry=False) as client,
    ):
        changing = Changing(server, admin, client, served.files)
        if "visible" in measures:
            for _ in range(CHANGES):
                changing.change()
                changing.check()
            yield {"measure": "visible", **changing.row()}
        for rate in served.rates(RATES) if "fresh" in measures else ():
            alone, row = (changing.loaded(served, rate, changes) for changes in (False, True))
            yield {"measure": "fresh", **row, **alone_facts(alone)}


class Changing:
    """A server whose ads change."""

    def __init__(
        self, server: RunningServer, admin: AdminClient, client: Client, files: ServedFiles
    ) -> None:
        self._server, self._admin, self._client = server, admin, client
        self._changes = PaperChanges(files.catalogue.paper)
        self._size = min(ADS, files.catalogue.paper.num_ads // 4)
        self._ads = ChangedAds(load_snapshot(files.snapshots, eligibility=CD))
        self._requests = cycle([RetrieveRequest.FromString(shot.body) for shot in files.shots])
        self._sent = self._visible = 0
        self._seconds: list[float] = []
        self._seen: list[SeenReply] = []

    def loaded(self, served: Served, rate: float, changes: bool) -> Row:
        """Load the server, and compare a few replies, while ads change or do not."""
        load = OpenLoop(rate, served.options.seconds)
        with ExitStack() as stack:
            faults = stack.enter_context(in_background(self.check, _CHECK_SECONDS))
            failed = stack.enter_context(in_background(self.change)) if changes else []
            row = load_server(self._server, served.files, load, served.many)
        return {**row, **self.row(), "faults": [*faults, *failed]}

    def change(self) -> None:
        """Send the next change, and wait until the server serves it."""
        number = self._sent + 1
        change = self._changes.change(number, self._size)
        request = UpdateAdsRequest(
            sequence=number,
            kind=UpdateAdsRequest.KIND_DELTA,
            put=map(json.dumps, change.puts),
            remove=change.removed,
            wait_visible=True,
        )
        self._ads.add(number, change)
        self._sent = number
        begin = perf_counter()
        reply = self._admin.update_ads(request, _CALL_SECONDS)
        self._seconds.append(perf_counter() - begin)
        self._visible = reply.visible
        if reply.visible < number or reply.refused:
            fault = self._admin.status(_CALL_SECONDS).updates.changes_fault
            raise DeviceError(
                f"update {number}: {len(reply.refused)} puts refused, {reply.visible} is visible: "
                f"{fault or 'the log has more'}"
            )

    def check(self) -> None:
        """Ask for a reply, which `row` compares."""
        request = next(self._requests)
        request.include_sids = True
        first = self._visible
        result = self._client.retrieve(request, timeout=_CALL_SECONDS)
        self._seen.append(SeenReply(request, result, first, self._sent))

    def row(self) -> Row:
        """Return what was measured since the last row, and the memory: the most so far, and now."""
        seconds, seen = sorted(self._seconds), self._seen
        self._seconds, self._seen = [], []
        for fault in filter(None, map(self._ads.fault, seen)):
            raise DeviceError(
                f"a reply while ads change: {fault}: it is wrong, and was not measured; run the "
                "tests of index/changes and server/reload"
            )
        gpu = self._admin.status(_CALL_SECONDS).engine.gpu_memory_bytes
        gpu_now = self._server.metrics().get(("grace_gpu_memory_bytes", ""), 0.0)
        host, host_now = (memory_gb(self._server.pid, name) for name in ("VmHWM", "VmRSS"))
        quantiles = {f"visible_p{q}_s": percentile(seconds, q) for q in (50, 99, 100) if seconds}
        memory = {"host_gb": host, "host_now_gb": host_now}
        memory |= {"gpu_gb": gpu / 1e9, "gpu_now_gb": gpu_now / 1e9}
        return {
            "ads_changed": self._size,
            "changes": len(seconds),
            "replies_compared": len(seen),
            **{name: round(value, 4) for name, value in (quantiles | memory).items()},
        }
