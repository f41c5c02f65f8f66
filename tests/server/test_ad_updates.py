"""Updates in the test's process: pairs that come meanwhile, the log, callers that wait, faults."""

import gc
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.configs.serving import UpdatesConfig
from grace.index.matching.exact import ExactMatcher
from grace.index.updates import log
from grace.index.updates.live_ads import LiveAds
from grace.index.updates.update import MOST_IDS, MOST_LEVELS
from grace.kernels import DecodeIndex
from grace.server import ad_updates
from grace.server.ad_updates import AdUpdates
from grace.server.engine.serving_pair import ServingPair
from grace.server.errors import ServiceError
from grace.server.observe.logs import LOGGER
from grace.server.waiting_updates import Updated
from support.update_calls import Levels, update


def nothing(*given: object) -> None:
    pass


@contextmanager
def running(folder: Path, settle: Callable[[], None] = nothing) -> Iterator[AdUpdates]:
    updates = AdUpdates(folder, UpdatesConfig(), settle, nothing, nothing)
    updates.start()
    try:
        yield updates
    finally:
        updates.close(30.0)


def submitted(updates: AdUpdates, sequence: int, **what: Any) -> "Future[Updated]":
    return updates.submit(update(sequence, **what).SerializeToString())


def fresh(pair: ServingPair) -> ServingPair:
    """Another pair of the same snapshot, as a load of a checkpoint makes it."""
    matcher, index = ExactMatcher(pair.snapshot, 1), DecodeIndex.of(pair.snapshot, pair.device)
    return replace(pair, live=LiveAds(pair.snapshot), matcher=matcher, index=index)


def is_stopped(pair: ServingPair, ad: int) -> bool:
    words, ordinal = pair.live.view.stopped, int(pair.snapshot.ads.ordinals([ad])[0])
    return words is not None and bool(int(words[ordinal >> 6]) >> (ordinal & 63) & 1)


def test_pairs_that_come_meanwhile_miss_no_acknowledged_stop(
    pair: ServingPair, tmp_path: Path
) -> None:
    ads = pair.snapshot.ads.ad_ids.tolist()[:111]
    pairs = [fresh(pair) for _ in range(11)]
    attached: list[ServingPair] = []
    missing: list[int] = []
    with running(tmp_path) as updates:

        def attach() -> None:
            for one in pairs:
                updates.attach(one)
                attached.append(one)

        thread = threading.Thread(target=attach)
        for sequence, ad in enumerate(ads, start=1):
            stop = submitted(updates, sequence, stop={"ad": [ad]})
            if sequence == 7:
                thread.start()
            stop.result()
            missing += [ad for one in attached if not is_stopped(one, ad)]
        thread.join()
        missing += [ad for ad in ads for one in pairs if not is_stopped(one, ad)]
    assert missing == []


def test_updates_keep_no_pair_alive(pair: ServingPair, tmp_path: Path) -> None:
    with running(tmp_path) as updates:
        one = fresh(pair)
        updates.attach(one)
        submitted(updates, 1, stop={"ad": [7]}).result()
        seen = weakref.ref(one), weakref.ref(one.live)
        del one
        gc.collect()
        assert [each() for each in seen] == [None, None]
        assert submitted(updates, 2, stop={"ad": [8]}).result() == Updated(2, applied=True)


def test_a_log_that_has_grown_is_rewritten_while_updates_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setattr(log, "REWRITE_BYTES", 1111)
    file = tmp_path / ad_updates.FOLDER / log.FILE
    largest = 0
    with running(tmp_path) as updates:
        for sequence in range(1, 334):
            name, ad = ("resume", sequence - 2) if sequence % 3 == 0 else ("stop", sequence)
            submitted(updates, sequence, **{name: {"ad": [ad]}}).result()
            largest = max(largest, file.stat().st_size)
        facts = updates.facts
    assert largest < 5 * 1111  # 333 updates in groups of their own take 18 KB
    with file.open("ab") as opened:
        opened.write(b"UPD")  # the begin of a group, of a server that was killed
    with running(tmp_path) as updates:
        assert updates.facts == facts
        assert (facts.sequence, facts.stopped) == (333, {"ad": 111})  # of three, the second stays
    cuts = [vars(each)["cut"] for each in caplog.records if each.message == "updates_read"]
    assert cuts == [0, 3]


@pytest.mark.parametrize(
    "stops",
    [
        [{"another": [7]}, {f"e{number}": [7] for number in range(MOST_LEVELS)}],
        [{"campaign": [7]}, {"ad": range(MOST_IDS)}],
    ],
    ids=["levels", "ids"],
)
def test_a_rewritten_log_may_hold_more_than_one_update_may(
    stops: list[Levels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "REWRITE_BYTES", 0)
    with running(tmp_path) as updates:
        for sequence, stop in enumerate(stops, start=1):
            submitted(updates, sequence, stop=stop).result()
        facts = updates.facts
    with running(tmp_path) as updates:
        assert updates.facts == facts


def test_a_full_update_leaves_numbers_for_later_ones(tmp_path: Path) -> None:
    """A mistyped number must not end all updates. What the log has is in force all the same."""
    far = 2**63 - 1
    with running(tmp_path) as updates:
        for sequence in (2**64 - 1, 2**63 + 2**32):
            refused = submitted(updates, sequence, full=True).exception()
            assert isinstance(refused, ServiceError)
            assert refused.reason == "invalid_field"
            fault = f"sequence: {sequence} leaves too few numbers for later updates, at most {far}"
            assert refused.text.startswith(fault)
        for sequence, full in ((far, True), (far + 1, False), (far + 2**32, True)):
            result = submitted(updates, sequence, full=full, stop={"ad": [7]}).result()
            assert result == Updated(sequence, applied=True)
    with running(tmp_path) as updates:
        assert updates.facts.sequence == far + 2**32


def test_updates_that_wait_are_written_together_without_those_of_callers_who_have_gone(
    tmp_path: Path,
) -> None:
    gate, settled = threading.Event(), []

    def settle() -> None:
        settled.append(1)
        assert gate.wait(30)

    with running(tmp_path, settle) as updates:
        calls = [submitted(updates, 1, stop={"ad": [1]})]
        while not settled:
            assert not calls[0].done()
        assert submitted(updates, 2, stop={"ad": range(2, 99)}).cancel()
        calls += [submitted(updates, number, stop={"ad": [number]}) for number in range(2, 64)]
        assert not any(call.done() for call in calls)
        gate.set()
        assert [call.result() for call in calls[1:]] == [Updated(63, applied=True)] * 62
        assert dict(updates.facts.stopped) == {"ad": 63}
    assert len(settled) == 2


def test_a_removal_counts_ads_that_were_put_and_are_not_served_yet(
    pair: ServingPair, tmp_path: Path
) -> None:
    old, new, leaf = int(pair.snapshot.ads.ad_ids[0]), 2**60, np.zeros(1, np.int64)
    put = json.dumps({"ad_id": new, "sid": pair.snapshot.trie.sids(leaf)[0].tolist()})
    updates = AdUpdates(tmp_path, UpdatesConfig(), nothing, nothing, nothing, lambda: pair.snapshot)
    updates.start()
    changes: list[dict[str, Any]]
    changes = [{"remove": [old, new]}, {"put": [put]}, {"remove": [old, new]}, {"remove": [new]}]
    absent = [submitted(updates, n, **each).result().absent for n, each in enumerate(changes, 1)]
    assert absent == [(new,), (), (old,), (new,)]
    updates.close(30.0)


def test_more_updates_than_may_wait_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ad_updates, "MOST_WAITING", 3)
    updates = AdUpdates(tmp_path, UpdatesConfig(), nothing, nothing, nothing)
    calls = [submitted(updates, number) for number in (1, 2, 3)]
    with pytest.raises(ServiceError) as caught:
        submitted(updates, 4)
    assert caught.value.reason == "too_many_updates"
    updates.start()
    assert [call.result().sequence for call in calls] == [3, 3, 3]
    updates.close(30.0)
    with pytest.raises(ServiceError) as caught:
        submitted(updates, 4)
    assert caught.value.reason == "draining"


def test_a_fault_of_the_thread_ends_the_server_and_leaves_no_caller_waiting(tmp_path: Path) -> None:
    died = threading.Event()

    def settle() -> None:
        raise KeyError("marker-4711")

    updates = AdUpdates(tmp_path, UpdatesConfig(), settle, nothing, died.set)
    updates.start()
    with pytest.raises(ServiceError) as caught:
        submitted(updates, 1, stop={"ad": [7]}).result(30)
    assert caught.value.reason == "internal"
    assert died.wait(30)
    with pytest.raises(ServiceError):
        submitted(updates, 2)
    updates.close(30.0)
