"""Each alert fires on real servers, once a test causes what it is about, and not before.

The rules are those of alerts.yaml with shorter durations. Only GraceMemoryGrows has no test here:
it takes hours, so alerts_test.yaml alone has it.
"""

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from grace.bench.fleet.certificates import Authority
from grace.index.storage import load_snapshot
from support.certificates import server_section
from support.faults import Faults
from support.forgery import forge_manifest
from support.live_snapshots import LiveRoot
from support.monitoring import hastened_rules, needs, steady_calls
from support.operators import operator_of
from support.prometheus import Prometheus
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles
from support.update_calls import Updater, update

pytestmark = [needs("prometheus"), pytest.mark.soak]

SCRAPE_SECONDS = 0.25
HASTE = 120.0  # five minutes take 2.5 s
QUIET_SECONDS = 3.0


class Watch:
    """A Prometheus that scrapes servers, and what fires there."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    def quiet(self) -> None:
        """Wait until nothing fires: on a busy machine, answers and timers may be late at first."""
        time.sleep(QUIET_SECONDS)
        wait_until(lambda: not self._prometheus.firing(), "nothing fires")

    def fires(self, *names: str) -> None:
        def all_fire() -> bool:
            return set(names) <= self._prometheus.firing()

        wait_until(all_fire, f"{', '.join(names)} fire")
        for name in names:
            texts = self._prometheus.annotations()[name]
            assert not [text for text in texts.values() if "{{" in text or "<error" in text]


@contextmanager
def watched(folder: Path, addresses: Sequence[str], haste: float = HASTE) -> Iterator[Watch]:
    rules = hastened_rules(folder / "rules.yaml", haste)
    with Prometheus(folder, addresses, SCRAPE_SECONDS, rules) as prometheus:
        watch = Watch(prometheus)
        wait_until(lambda: len(prometheus.query("up == 1")) == len(addresses), "all are scraped")
        yield watch


@contextmanager
def two_servers(live: LiveRoot, folder: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    configs = [
        live.write_config(f"{name}.yaml", state_dir=str(folder / name)) for name in ("one", "two")
    ]
    with ServerProcess(configs[0]) as first, ServerProcess(configs[1]) as second:
        yield first, second


def test_servers_that_end(tmp_path: Path, live: LiveRoot) -> None:
    with (
        two_servers(live, tmp_path) as servers,
        watched(tmp_path, [server.metrics_address for server in servers]) as watch,
    ):
        watch.quiet()
        servers[0].kill()
        watch.fires("GraceServerNotServing")
        servers[1].kill()
        watch.fires("GraceNoServerReady")


def test_a_server_that_starts_again_and_again(tmp_path: Path, live: LiveRoot) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = live.write_config("again.yaml", metrics={"port": port})
    with ServerProcess(config) as first, watched(tmp_path, [f"127.0.0.1:{port}"], 30) as watch:
        watch.quiet()
        first.kill()
        for _ in range(3):
            with ServerProcess(config):
                time.sleep(4 * SCRAPE_SECONDS)
        watch.fires("GraceServerRestarts")


def test_batches_that_fail(tmp_path: Path, serving_files: ServingFiles, faults: Faults) -> None:
    request = message(serving_files.requests[0])
    with (
        ServerProcess(serving_files.write_config("fails.yaml"), faults=faults) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
        steady_calls(server.address, [request], 0.05),
    ):
        watch.quiet()
        caller = Caller(server.address)
        for _ in range(9):  # a stage dies of three in a row
            with faults.raises("post", "a fault"):
                wait_until(lambda: caller.call(request).reason == "internal", "a batch fails")
            wait_until(lambda: caller.call(request).ok, "a batch is answered")
        watch.fires("GraceInternalErrors")
        caller.close()


def test_an_overload(tmp_path: Path, serving_files: ServingFiles, faults: Faults) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config("overload.yaml")
    with (
        ServerProcess(config, faults=faults) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
    ):
        with steady_calls(server.address, [request], 0.1):
            watch.quiet()
        with faults.slow("generate", 0.3), steady_calls(server.address, [request], 0.01):
            watch.fires("GraceSheds", "GraceErrorBudgetBurns", "GraceLatencyBudgetBurns")


def test_a_queue_so_long_that_profiles_degrade(
    tmp_path: Path, serving_files: ServingFiles, faults: Faults
) -> None:
    profiles = {
        "full": {"beams": [1, 16, 16, 16], "num_sids": 16, "degrades_to": "reduced"},
        "reduced": {"beams": [1, 4, 4, 4], "num_sids": 4},
    }
    config = serving_files.write_config("degrades.yaml", generation={"profiles": profiles})
    request = message(serving_files.requests[0])
    with (
        ServerProcess(config, faults=faults) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
    ):
        with steady_calls(server.address, [request], 0.1):
            watch.quiet()
        with faults.slow("generate", 0.1), steady_calls(server.address, [request], 0.01):
            watch.fires("GraceDegrades")


def test_every_ad_is_stopped(tmp_path: Path, live: LiveRoot) -> None:
    ads = load_snapshot(live.folder(1)).ads.ad_ids.tolist()
    config = live.write_config("empty.yaml", state_dir=str(tmp_path / "state"))
    with (
        ServerProcess(config) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
        steady_calls(server.address, [message(live.files.requests[0])], 0.05),
        Updater(server) as updater,
    ):
        watch.quiet()
        updater.apply(1, full=True, stop={"ad": ads})
        watch.fires("GraceEmptyReplies")


def test_a_damaged_snapshot_and_then_an_old_one(tmp_path: Path, live: LiveRoot) -> None:
    damaged, old = live.add(like=1), live.add(like=1)
    (some_file, *_) = sorted(live.folder(damaged).glob("*.npy"))
    some_file.write_bytes(some_file.read_bytes()[:-1] + b"?")
    built = (datetime.now(UTC) - timedelta(hours=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    forge_manifest(live.folder(old), lambda fields: fields.update(created_at=built))
    with (
        ServerProcess(live.write_config("loads.yaml")) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
    ):
        watch.quiet()
        live.publish(damaged)
        watch.fires("GraceLoadFails")
        live.publish(old)
        watch.fires("GraceIndexOld")


def test_a_rollback_of_one_server(tmp_path: Path, live: LiveRoot) -> None:
    with two_servers(live, tmp_path) as servers:
        live.publish(2)
        for server in servers:
            server.wait_log("swapped")
        addresses = [server.metrics_address for server in servers]
        with watched(tmp_path, addresses, 1200.0) as watch:  # four hours take 12 s
            watch.quiet()
            with operator_of(servers[0]) as operator:
                operator.roll_back()
            watch.fires("GracePinned", "GraceVersionsDiffer")


def test_updates_that_one_server_does_not_get(tmp_path: Path, live: LiveRoot) -> None:
    with (
        two_servers(live, tmp_path) as servers,
        watched(tmp_path, [server.metrics_address for server in servers]) as watch,
        Updater(servers[0]) as updater,
    ):
        watch.quiet()
        updater.apply(1, stop={"ad": [7]})
        watch.fires("GraceUpdatesLag")
        assert updater.call(update(9, stop={"ad": [8]})).reason == "update_gap"
        watch.fires("GraceUpdatesFail")


def test_a_process_that_gets_no_processor_time(tmp_path: Path, live: LiveRoot) -> None:
    with (
        ServerProcess(live.write_config("late.yaml")) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
    ):
        watch.quiet()
        for _ in range(20):
            server.signal(signal.SIGSTOP)
            time.sleep(0.3)
            server.signal(signal.SIGCONT)
            time.sleep(0.3)
        watch.fires("GraceLoopLag")


def test_a_certificate_that_expires_and_one_that_is_no_certificate(
    tmp_path: Path, live: LiveRoot
) -> None:
    authority, now = Authority(tmp_path, "ca"), datetime.now(UTC)
    files = authority.issue("server", not_after=now + timedelta(days=30))
    config = live.write_config("tls.yaml", listen={"tls": server_section(files)})
    with (
        ServerProcess(config) as server,
        watched(tmp_path, [server.metrics_address]) as watch,
    ):
        watch.quiet()
        files.certificate.write_text("no certificate")
        watch.fires("GraceCredentialsRefused")
        authority.issue("server", not_after=now + timedelta(days=13))
        watch.fires("GraceCertificateExpires")
